"""A check that the user takes and calls what ``prepare`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from torch import nn

from ...errors import ConfigurationError

__all__ = ["TakenModules"]


LOOKS = 8
"""So many backward passes look for gradients of a module whose prepared form was not called: losses may take turns."""


class TakenModules:
    """Refuses a loop that trains a module in another form than the one that ``prepare`` returned.

    Its gradients would not be reduced, and its forward pass would lack the precision. The first backward passes after
    ``prepare`` find it out; later ones cost nothing.
    """

    def __init__(self) -> None:
        self._new: list[tuple[ref[nn.Module], ref[nn.Module]]] = []
        """The modules that were prepared since the last check, each with the user's own."""
        self._uncalled: list[tuple[ref[Any], int]] = []
        """The prepared modules that reduce gradients, each with the number of backward passes that still look at it."""

    def add(self, prepared: nn.Module, own: nn.Module, reduces: bool) -> None:
        """Note that ``own`` was prepared, and whether the forward pass of ``prepared`` has gradients reduced."""
        self._new.append((ref(prepared), ref(own)))
        if reduces:
            self._uncalled.append((ref(prepared), LOOKS))

    def __bool__(self) -> bool:
        return bool(self._new or self._uncalled)

    def check(self, backward: Callable[[], object], live: Iterable[Any]) -> None:
        """Run one of the first backward passes.

        Args:
            backward: Runs it.
            live: The prepared modules that are left.

        Raises:
            ConfigurationError: It computed gradients of a module whose prepared form is gone, or was not called.
        """
        live = list(live)
        kept = [getattr(model, "_core_inner", None) for model in live]
        pairs, self._new = self._new, []
        dropped = [own for prepared, own in ((one(), other()) for one, other in pairs) if prepared is None]
        suspects = [own for own in dropped if own is not None and all(own is not one for one in kept)]
        suspects = [own for own in suspects if not _has_gradients(own)]
        looks = [(prepared, left) for prepared, left in ((one(), left) for one, left in self._uncalled) if prepared]
        looks = [(prepared, left) for prepared, left in looks if not prepared._core_called.by_loop]
        self._uncalled = [(ref(prepared), left - 1) for prepared, left in looks if left > 1]
        before = [(prepared, _gradients(prepared, live)) for prepared, _ in looks]
        backward()
        for own in filter(_has_gradients, suspects):
            raise ConfigurationError(
                f"backward: these are gradients of the {type(own).__name__} that was passed to prepare, and what it "
                "returned is gone: nothing reduces its gradients over the processes, and its forward pass does "
                "not use the precision. Go on with what prepare returns: model, optimizer = runtime.prepare(model, "
                "optimizer)."
            )
        for prepared, gradients in before:
            if _gradients(prepared, live) != gradients:
                raise ConfigurationError(
                    f"backward: these are gradients of {type(prepared._core_inner).__name__}, but the prepared model "
                    "was not called. They come from what runtime.unwrap_model(model) returned, or from a part of the "
                    "model, so they are not reduced, and the processes would train different models. Call the prepared "
                    "model: model(batch). unwrap_model is for saving, and for forward passes within torch.no_grad()."
                )


def _has_gradients(module: nn.Module) -> bool:
    return any(parameter.grad is not None for parameter in module.parameters())


def _gradients(module: nn.Module, live: Iterable[nn.Module]) -> list[tuple[int, int]]:
    """Which gradients the module alone of ``live`` has, and how often each was changed."""
    others = {id(parameter) for other in live if other is not module for parameter in other.parameters()}
    gradients = (parameter.grad for parameter in module.parameters() if id(parameter) not in others)
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]
