"""A logged metric: the values of one name in the running epoch, or a metric object such as torchmetrics'.

The value of a step is what such an object returned when it was called; the value of an epoch is ``compute()``. It
combines its state over processes itself, as torchmetrics does, so every process computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ...errors import CheckpointError, ConfigurationError, WrongTypeError
from ...strategies.training_step import LOG_REDUCTIONS
from ...utilities.nested import map_tensors

Value = Tensor | float

SAVED = ("on_step", "on_epoch", "prog_bar", "to_logger", "reduce_fx", "sync_dist", "last", "total", "weight")
"""The attributes that a checkpoint holds."""


class Pending(NamedTuple):
    """A value of this process's newest step, until the processes exchange theirs."""

    reduce_fx: str
    batch: int
    """The number of batches that were trained on before it was logged."""
    value: Value


class Metric:
    """The values of one name; and how they are combined, and where they go."""

    __slots__ = (*SAVED, "given", "pending", "place")

    def __init__(
        self,
        on_step: bool,
        on_epoch: bool,
        prog_bar: bool,
        to_logger: bool,
        reduce_fx: str,
        sync_dist: bool,
        given: tuple[Any, ...] | None,
    ) -> None:
        self.on_step, self.on_epoch, self.prog_bar, self.to_logger = on_step, on_epoch, prog_bar, to_logger
        self.reduce_fx, self.sync_dist = reduce_fx, sync_dist
        self.given = given
        """The options of the first call; ``None`` if not known."""
        self.place: Any = None
        """Where it is logged: the number of the loader, or a part of the epoch without batches."""
        self.last: Value | None = None
        """The value of this epoch's last step that logged it; where processes exchange values, of the last exchange."""
        self.pending: Pending | None = None
        """The value of this process that it has not exchanged yet."""
        self.total: Value | None = None
        self.weight: float = 0

    def add(self, value: Value, size: int) -> None:
        """Take a value of weight ``size`` into the epoch's."""
        if isinstance(value, Tensor):
            value = _wide(value)
        if self.reduce_fx == "mean":
            value = value * size
            self.weight += size
        self.total = value if self.total is None else LOG_REDUCTIONS[self.reduce_fx](self.total, value)

    def reset(self) -> None:
        """Forget the epoch's values."""
        self.last = self.total = self.pending = None
        self.weight = 0

    def name(self, name: str, suffix: str) -> str:
        """The name that a value is published under: with the suffix if there are values of both kinds."""
        plain, of_loader, number = name.partition("/dataloader_idx_")
        return plain + suffix + of_loader + number if self.on_step and self.on_epoch else name

    def published_names(self, name: str) -> set[str]:
        """The names under which the values are published."""
        suffixes = [suffix for suffix, is_wanted in (("_step", self.on_step), ("_epoch", self.on_epoch)) if is_wanted]
        return {name, *(self.name(name, suffix) for suffix in suffixes)}

    def state_dict(self) -> dict[str, Any]:
        """The values, and how they are combined."""
        pending = None if self.pending is None else list(self.pending)
        return {**{name: getattr(self, name) for name in SAVED}, "pending": pending, "place": self.place}

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device, owner: Any) -> Self:
        """Restore a :meth:`state_dict`, with tensors on ``device``; ``owner`` is the module that logged the metric."""
        metric = cls.__new__(cls)
        metric.given = None
        for name in SAVED:
            value = state[name]
            setattr(metric, name, value.to(device) if isinstance(value, Tensor) else value)
        pending = state.get("pending")
        metric.pending, metric.place = None if pending is None else Pending(*pending), state.get("place")
        return metric


def _wide(value: Tensor) -> Tensor:
    """``value`` in a dtype in which many such values can be added up."""
    if value.dtype in _WIDE:
        return value
    return value.float() if value.is_floating_point() else value.long()


_WIDE = frozenset({torch.float32, torch.float64, torch.int64})


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
                "value = self.metric(predictions, targets), rather than its update, and log the value if the metric "
                "does not keep it; or log the metric with on_step=False, on_epoch=True."
            )
        self.last = _as_scalar(name, last)

    def reset(self) -> None:
        """Forget the epoch's values; the object itself is reset by the stage."""
        super().reset()
        self.is_logged = False

    def state_dict(self) -> dict[str, Any]:
        """The state of the object, too: torchmetrics leaves it out of the module's."""
        content = {} if _is_torchmetric(self.value) else _object_state(self.value)  # see metric_states
        own = {"attribute": self.attribute, "is_logged": self.is_logged, "object": content}
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


def combine_objects(by_shard: Sequence[Mapping[str, tuple[str, dict[str, Any]]]], owner: Any) -> dict[str, Tensor]:
    """The value of each object that any process has logged; computed by all, in the same order, then reset.

    Args:
        by_shard: For each process, by name: the attribute of ``owner`` that the object is, and :func:`forms_of` it.
        owner: The module.
    """
    everything = [(name, *facts) for objects in by_shard for name, facts in objects.items()]
    metrics = {name: find_attribute(owner, attribute) for name, attribute, _ in everything}
    for name, _, forms in everything:
        _take_form(metrics[name], forms)
    values = {name: torch.as_tensor(_as_scalar(name, item.compute())).cpu().double() for name, item in metrics.items()}
    for metric in metrics.values():  # when all are computed: one object may have several names
        metric.reset()
    return values


def forms_of(metric: Any) -> dict[str, Any]:
    """By name, the shape and dtype of each state of a torchmetric; for a list, that of its first item."""
    forms = {}
    for name, state in metric.metric_state.items() if _is_torchmetric(metric) else ():
        first = next(iter(state), None) if isinstance(state, list) else state
        if isinstance(first, Tensor):
            forms[name] = tuple(first.shape), first.dtype
    return forms


def _take_form(metric: Any, forms: Mapping[str, Any]) -> None:
    """Where this process had no batch, give the states the form that they have in another one.

    Some have it only after the first update, and the processes can exchange only states of as many dimensions.
    """
    if not _is_torchmetric(metric) or int(getattr(metric, "_update_count", 0)):
        return
    for name, (shape, dtype) in forms.items():
        state = getattr(metric, name)
        if isinstance(state, list) and not state and shape:
            setattr(metric, name, [torch.empty((0, *shape[1:]), dtype=dtype, device=metric.device)])
        elif isinstance(state, Tensor) and not state.dim():
            setattr(metric, name, state.expand(shape).clone())


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


def metric_states(module: nn.Module) -> dict[str, Any]:
    """What the torchmetrics in ``module`` have been updated with, by their names; ``state_dict`` leaves that out."""
    return {name: _object_state(part) for name, part in module.named_modules() if _is_torchmetric(part)}


def load_metric_states(module: nn.Module, states: Mapping[str, Any]) -> None:
    """Load what :func:`metric_states` returned into the metrics that ``module`` still has."""
    for name, part in module.named_modules():
        if name in states and _is_torchmetric(part):
            _load_object_state(part, states[name], part.device)


def _is_torchmetric(value: Any) -> bool:
    # A collection has the states of its items, which are parts of the module, too.
    is_single = not isinstance(value, nn.ModuleDict | nn.ModuleList)
    return is_metric_object(value) and is_single and isinstance(getattr(value, "metric_state", None), Mapping)


def _object_state(value: Any) -> Any:
    if _is_torchmetric(value):
        copied = map_tensors(lambda tensor: tensor.detach().clone(), dict(value.metric_state))
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
