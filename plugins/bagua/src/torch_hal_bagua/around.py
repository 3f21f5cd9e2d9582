"""Functions that are called around each forward pass of a module.

With any of torch's hooks, all calls of the module would take torch's slow path: 8 to 10 µs per call with two processes,
where this takes 2.
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
    """Call ``before`` and ``after`` around each forward pass of ``module``, also if it raises.

    Copies of the module, deep or pickled, call neither.

    Args:
        module: Its ``forward`` is replaced on the instance.
        before: Called first; torch's compiler does not trace it.
        after: Called last, unless it is ``None``.

    Returns:
        A function that stops the calls, even if ``forward`` was wrapped again in the meantime.
    """
    watched: nn.Module | None = module
    replaced = vars(module).get("forward")  # set if this instance already has its own forward
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
