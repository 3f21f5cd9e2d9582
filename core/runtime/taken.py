"""Whether the user takes what ``prepare`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from torch import nn

from core.errors import ConfigurationError

__all__ = ["TakenModules"]


class TakenModules:
    """Refuses a loop that trains the module that it passed to ``prepare``, and has dropped the prepared one.

    Its gradients would not be reduced, and its forward pass would lack the precision. The first backward pass after
    ``prepare`` finds it out; later ones cost nothing.
    """

    def __init__(self) -> None:
        self._new: list[tuple[ref[nn.Module], ref[nn.Module]]] = []
        """The modules that were prepared since the last check, each with the user's own."""

    def add(self, prepared: nn.Module, own: nn.Module) -> None:
        """Note that ``own`` was prepared."""
        self._new.append((ref(prepared), ref(own)))

    def __bool__(self) -> bool:
        return bool(self._new)

    def check(self, backward: Callable[[], object], live: Iterable[Any]) -> None:
        """Run the first backward pass.

        Args:
            backward: Runs it.
            live: The prepared modules that are left.

        Raises:
            ConfigurationError: It computed gradients of a module whose prepared form is gone.
        """
        kept = [getattr(model, "_core_inner", None) for model in live]
        pairs, self._new = self._new, []
        dropped = [own for prepared, own in ((one(), other()) for one, other in pairs) if prepared is None]
        suspects = [own for own in dropped if own is not None and all(own is not one for one in kept)]
        suspects = [own for own in suspects if not _has_gradients(own)]
        backward()
        for own in filter(_has_gradients, suspects):
            raise ConfigurationError(
                f"backward: these are gradients of the {type(own).__name__} that was passed to prepare, and what it "
                "returned is gone: nothing reduces its gradients over the processes, and its forward pass does "
                "not use the precision. Go on with what prepare returns: model, optimizer = runtime.prepare(model, "
                "optimizer)."
            )


def _has_gradients(module: nn.Module) -> bool:
    return any(parameter.grad is not None for parameter in module.parameters())
