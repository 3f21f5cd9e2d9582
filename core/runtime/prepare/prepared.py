"""The objects that a Runtime has prepared, in order, for its checkpoints; and whether the loop uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary, WeakSet, ref

from torch import nn
from torch.optim import Optimizer

from ...data import PreparedLoader
from ...errors import ConfigurationError, quoted
from ..checks import check_kind

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
        """Note that ``own`` was prepared; ``reduces``: the forward pass of ``prepared`` sets up gradient reduction."""
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


Kind = Literal["models", "optimizers", "schedulers", "loaders"]


class _Optimizers(WeakKeyDictionary[Optimizer, None]):
    """Optimizers in order, as long as something else refers to them."""

    def __reduce__(self) -> tuple[type[_Optimizers], tuple[()]]:
        return _Optimizers, ()  # another process prepares its own


class PreparedObjects:
    """The prepared objects, by kind and in order, as long as something else refers to them."""

    def __init__(self) -> None:
        self.optimizers = _Optimizers()
        """What steps: the prepared optimizers without their wrappers, in the same order in every process."""
        self.live: WeakSet[Any] = WeakSet()
        """The prepared modules, optimizers and schedulers, kept until the run ends."""
        self.clear()

    def add(self, objects: Iterable[Any]) -> None:
        """Note prepared objects; those that are known keep their place, and those without a state are left out."""
        for obj in objects:
            kind = _kind_of(obj)
            if kind is not None and all(obj is not known for known in self.of(kind)):
                if isinstance(obj, nn.Module):
                    named = dict(obj.named_parameters())
                    self._parameters[obj] = frozenset(named) | frozenset(map(id, named.values()))
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
        self._parameters: WeakKeyDictionary[nn.Module, frozenset[str | int]] = WeakKeyDictionary()
        """The parameters of each model when it was prepared: names and ids. Either may change later."""

    def check_parameters(self, optimizer: Optimizer) -> None:
        """Reject an optimizer of parameters that a model got after it was prepared: nothing reduces their gradients.

        Raises:
            ConfigurationError: It has some.
        """
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model in self.of("models"):
            before = self._parameters[model]
            added = [
                name for name, each in model.named_parameters() if id(each) in held - before and name not in before
            ]
            if added:
                raise ConfigurationError(
                    f"prepare: {type(optimizer).__name__} holds {len(added)} parameter(s) that "
                    f"{type(model).__name__} got after it was prepared: {quoted(added[:5])}. Their gradients would not "
                    "be reduced, and the processes would train different models. Change the model before it is "
                    "prepared: add layers and adapters, resize embeddings, then call prepare."
                )

    def watch(self, optimizers: Iterable[Optimizer], num_processes: int, models: Iterable[nn.Module] = ()) -> Self:
        """Have :meth:`check_newest_group` called on several processes, where ``add_param_group`` is torch's own.

        Args:
            optimizers: Whose groups are checked.
            num_processes: How many there are.
            models: Prepared ones that are not yet noted.
        """
        self.add(models)
        for optimizer in optimizers if num_processes > 1 else ():
            if type(optimizer).add_param_group is Optimizer.add_param_group:
                # Of the instance: another class would change its type, and a check in each step would cost time.
                vars(optimizer)["add_param_group"] = _CheckedGroups(optimizer, self)
        return self

    def check_newest_group(self, optimizer: Optimizer) -> None:
        """Drop and reject the group that was added to ``optimizer``, if nothing reduces gradients of its parameters.

        Raises:
            ConfigurationError: It has parameters that no prepared model had when it was prepared.
        """
        models = [(model, self._parameters[model]) for model in self.of("models")]
        reduced = {
            id(each)
            for model, before in models
            for name, each in model.named_parameters()
            if name in before or id(each) in before
        }
        new = [each for each in optimizer.param_groups[-1]["params"] if each.requires_grad and id(each) not in reduced]
        if models and new:
            optimizer.param_groups.pop()
            raise ConfigurationError(
                f"add_param_group: {len(new)} parameter(s), of shape "
                f"{', '.join(str(tuple(each.shape)) for each in new[:5])}, are of no model that was prepared, or were "
                "added to it since. Their gradients would not be reduced, and the processes would train different "
                "ones. Create the layers before prepare or fit; or end this run there, and prepare the changed model "
                "in another."
            )

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
        self.optimizers, self.live = state["optimizers"], WeakSet()
        self.clear()


class _CheckedGroups:
    """``add_param_group`` of an optimizer, with a check as long as ``prepared`` lives and has models."""

    def __init__(self, optimizer: Optimizer, prepared: PreparedObjects) -> None:
        self._optimizer, self._prepared = ref(optimizer), ref(prepared)

    def __call__(self, param_group: dict[str, Any]) -> None:
        optimizer, prepared = self._optimizer(), self._prepared()
        assert optimizer is not None  # whoever calls it has the optimizer
        Optimizer.add_param_group(optimizer, param_group)
        if prepared is not None:
            prepared.check_newest_group(optimizer)


def _kind_of(obj: Any) -> Kind | None:
    if isinstance(obj, nn.Module):
        return "models"
    if isinstance(obj, Optimizer):
        return "optimizers"
    if isinstance(obj, PreparedLoader):
        return "loaders"
    return "schedulers" if hasattr(obj, "step") and hasattr(obj, "state_dict") else None
