"""Metric objects that are logged: torchmetrics' and any other with ``update``, ``compute`` and ``reset``.

The value of a step is what the object returned when it was called; the value of an epoch is ``compute()``. Such an
object combines its state over processes itself, as torchmetrics does, so every process computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...errors import CheckpointError, ConfigurationError, WrongTypeError
from ...utilities.nested import map_tensors
from .metric import Metric

__all__ = ["ObjectMetric", "combine_objects", "is_metric_object"]


def is_metric_object(value: Any) -> bool:
    """Whether ``value`` is an object that computes a metric."""
    return (
        not isinstance(value, Tensor | int | float)
        and not isinstance(value, type)
        and all(callable(getattr(value, name, None)) for name in ("update", "compute", "reset"))
    )


class ObjectMetric(Metric):
    """One name under which an object is logged."""

    __slots__ = ("attribute", "is_logged", "value")

    def __init__(self, value: Any, attribute: str, *options: Any) -> None:
        super().__init__(*options)
        self.value, self.attribute = value, attribute
        self.is_logged = False
        """Whether it was logged in the running epoch."""

    @classmethod
    def of(cls, name: str, value: Any, attribute: str | None, owner: Any) -> Callable[..., ObjectMetric]:
        """Makes one of the other arguments of :class:`core.trainer.metrics.metric.Metric`.

        Raises:
            ConfigurationError: ``value`` is no attribute of ``owner``, where a checkpoint and other processes find it.
        """
        found = attribute or _attribute_of(value, owner)
        if found is None:
            raise ConfigurationError(
                f"log({name!r}): the metric {type(value).__name__} is not an attribute of the module. Create it in "
                "__init__ as self.<name>, or give its place as metric_attribute='<name>'."
            )
        return partial(cls, value, found)

    def take(self, name: str, value: Any) -> None:
        """Take the value of a step.

        Raises:
            ConfigurationError: Another object was logged before, or the value of the step is not known.
        """
        if value is not self.value:
            raise ConfigurationError(
                f"log({name!r}): called with another object than before in this stage. Use one name for each metric."
            )
        self.is_logged = True
        if not self.on_step:
            return
        last = getattr(value, "_forward_cache", None)
        if last is None:
            raise ConfigurationError(
                f"log({name!r}): the metric {type(value).__name__} has no value of this step. Call it, as in "
                "value = self.metric(predictions, targets), rather than its update; or log it with on_step=False, "
                "on_epoch=True."
            )
        self.last = _as_scalar(name, last)

    def reset(self) -> None:
        """Forget the epoch's values; the object itself is reset by the stage."""
        super().reset()
        self.is_logged = False

    def state_dict(self) -> dict[str, Any]:
        """The state of the object, too: torchmetrics leaves it out of the module's."""
        own = {"attribute": self.attribute, "is_logged": self.is_logged, "object": _object_state(self.value)}
        return {**super().state_dict(), **own}

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device, owner: Any) -> Self:
        """See the base class; the object is the attribute of ``owner``."""
        metric = super().from_state(state, device, owner)
        metric.attribute, metric.is_logged = state["attribute"], state["is_logged"]
        metric.value = find_attribute(owner, metric.attribute)
        if not is_metric_object(metric.value):  # a checkpoint can name any attribute, the Trainer's too
            raise CheckpointError(f"metrics: the module has no metric object {str(metric.attribute)[:100]!r}.")
        _load_object_state(metric.value, state["object"], device)
        return metric


def combine_objects(by_shard: Sequence[Mapping[str, tuple[str, bool, bool]]], owner: Any) -> dict[str, Tensor]:
    """The value of each object that any process has logged; computed by all, in the same order, then reset."""
    found: dict[str, str] = {}
    for objects in by_shard:
        for name, (attribute, *_) in objects.items():
            found.setdefault(name, attribute)
    metrics = {name: find_attribute(owner, attribute) for name, attribute in found.items()}
    values = {name: torch.as_tensor(_as_scalar(name, item.compute())).cpu().double() for name, item in metrics.items()}
    for metric in metrics.values():  # when all are computed: one object may have several names
        metric.reset()
    return values


def find_attribute(owner: Any, path: str) -> Any:
    """The attribute of ``owner`` at a path with dots, as ``named_modules`` names it."""
    found = owner
    for part in path.split("."):
        found = found[part] if isinstance(found, nn.ModuleDict) and part in found else getattr(found, part)
    return found


def _attribute_of(value: Any, owner: Any) -> str | None:
    if isinstance(value, nn.Module):
        return next((path for path, part in owner.named_modules() if part is value), None)
    return next((name for name, part in vars(owner).items() if part is value), None)


def _as_scalar(name: str, value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(()).clone()
    if isinstance(value, int | float):
        return value
    raise WrongTypeError(
        f"log({name!r}): the metric's value is {value!r}; it must be a number or a scalar tensor. Log several values "
        "with log_dict."
    )


def _object_state(value: Any) -> Any:
    states = getattr(value, "metric_state", None)  # torchmetrics
    if isinstance(states, Mapping):
        copied = map_tensors(lambda tensor: tensor.detach().clone(), dict(states))
        return {"states": copied, "updates": int(getattr(value, "_update_count", 0))}
    return {"state_dict": value.state_dict()} if callable(getattr(value, "state_dict", None)) else {}


def _load_object_state(value: Any, state: Mapping[str, Any], device: torch.device) -> None:
    if "states" in state:
        for name, content in state["states"].items():
            if name not in value.metric_state:
                raise CheckpointError(f"metrics: {type(value).__name__} has no state {str(name)[:100]!r}.")
            setattr(value, name, map_tensors(lambda tensor: tensor.to(device), content))
        value._update_count = state["updates"]
        value._computed = None
    elif "state_dict" in state:
        value.load_state_dict(state["state_dict"])
