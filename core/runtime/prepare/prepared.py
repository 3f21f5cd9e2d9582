"""The objects that a Runtime has prepared, in order, for its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet, ref

from torch import nn
from torch.optim import Optimizer

from ...data import PreparedLoader
from ...errors import ConfigurationError
from ..arguments import check_kind
from .unused_results import TakenModules

__all__ = ["PreparedObjects"]

Kind = Literal["models", "optimizers", "schedulers", "loaders"]


class _Optimizers(WeakKeyDictionary[Optimizer, None]):
    """Optimizers in order, as long as something else refers to them."""

    def __reduce__(self) -> tuple[type[_Optimizers], tuple[()]]:
        return _Optimizers, ()  # another process prepares its own


class PreparedObjects:
    """What was prepared, by kind and in order, as long as something else refers to it."""

    def __init__(self) -> None:
        self.optimizers = _Optimizers()
        """What steps: the prepared optimizers without their wrappers, in the same order in every process."""
        self.clear()

    def add(self, objects: Iterable[Any]) -> None:
        """Note prepared objects; those that are known keep their place, and those without a state are left out."""
        for obj in objects:
            kind = _kind_of(obj)
            if kind is not None and all(obj is not known for known in self.of(kind)):
                self._known[kind] = [known for known in self._known[kind] if known() is not None] + [ref(obj)]

    def has(self, obj: Any) -> bool:
        """Whether ``obj`` is one of them."""
        kind = _kind_of(obj)
        return kind is not None and any(obj is known for known in self.of(kind))

    def of(self, kind: Kind) -> list[Any]:
        """The objects of one kind, in the order in which they were prepared."""
        return [obj for known in self._known[kind] if (obj := known()) is not None]

    def clear(self) -> None:
        """Forget all of them."""
        self.optimizers.clear()
        self.given: WeakSet[Optimizer] = WeakSet()
        """The optimizers that step, and the user's own that they were made of."""
        self.taken = TakenModules()
        """Whether the loop uses what ``prepare`` has returned."""
        self._known: dict[Kind, list[ref[Any]]] = {"models": [], "optimizers": [], "schedulers": [], "loaders": []}
        self._checked: WeakSet[nn.Module] = WeakSet()

    def check_model(self, call: str, model: Any) -> None:
        """Check that ``model`` is a prepared one, or has one in it, as :func:`torch.compile` wraps it.

        Args:
            call: The method, for the message.
            model: What the user passed to it.

        Raises:
            WrongTypeError: It is no module.
            ConfigurationError: It was not prepared.
        """
        if model in self._checked:
            return
        check_kind(f"{call}: model", model, nn.Module, "Pass the prepared module.")
        models, name = self.of("models"), type(model).__name__
        if any(model is getattr(one, "_core_inner", None) for one in models):
            raise ConfigurationError(
                f"{call}: got the {name} that was passed to prepare, whose gradients the strategy does not know. Pass "
                f"what it returned: model = runtime.prepare(model), then {call}(model)."
            )
        owned = {id(parameter) for one in models for parameter in one.parameters()}
        if all(model is not one for one in models) and not any(id(each) in owned for each in model.parameters()):
            raise ConfigurationError(
                f"{call}: got a {name} that was not prepared, so the call would not affect it. Pass a model that "
                "runtime.prepare has returned."
            )
        self._checked.add(model)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "optimizers": self.optimizers
        }  # which other parts of the Runtime know; another process prepares its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.optimizers = state["optimizers"]
        self.clear()


def _kind_of(obj: Any) -> Kind | None:
    if isinstance(obj, nn.Module):
        return "models"
    if isinstance(obj, Optimizer):
        return "optimizers"
    if isinstance(obj, PreparedLoader):
        return "loaders"
    return "schedulers" if hasattr(obj, "step") and hasattr(obj, "state_dict") else None
