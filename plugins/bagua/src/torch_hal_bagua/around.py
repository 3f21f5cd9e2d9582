"""Something done around each forward pass of a module.

Any hook of torch's would send all calls of the module through torch's long way of calling one: 8 to 10 µs a call with
two processes, where this takes 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

__all__ = ["call_around_forward"]


def call_around_forward(
    module: nn.Module, before: Callable[[], None], after: Callable[[], None] | None
) -> Callable[[], None]:
    """Have ``before`` and ``after`` called around each forward pass of ``module``, also one that raises.

    Copies of the module, deep or pickled, call neither.

    Args:
        module: Gets a ``forward`` of its own.
        before: Called at first; torch's compiler does not look into it.
        after: Called at last, if it is given.

    Returns:
        What ends it, also where somebody has put a ``forward`` of their own around this one.
    """
    watched: nn.Module | None = module
    replaced = vars(module).get("forward")  # where somebody has given this one instance a forward of its own
    bound = module.forward
    if isinstance(bound, MethodType) and bound.__self__ is module:
        plain: Callable[..., Any] = bound.__func__
    else:

        def plain(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return bound(*args, **kwargs)

    opaque_before: Callable[[], None] = torch.compiler.disable(before)  # type: ignore[no-untyped-call]

    @wraps(plain)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not watched:
            return plain(self, *args, **kwargs)
        (opaque_before if is_dynamo_compiling() else before)()
        try:
            return plain(self, *args, **kwargs)
        finally:
            if after is not None:
                after()

    forward.__name__ = "forward"  # pickle looks a method up by its name
    own = vars(module)["forward"] = MethodType(forward, module)

    def end() -> None:
        nonlocal watched
        watched = None
        if vars(module).get("forward") is not own:
            return
        if replaced is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = replaced

    return end
