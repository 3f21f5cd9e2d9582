"""The inputs of a strategy: its constructor's arguments, the Plan's decisions, and what it reads from a Trainer."""


# Not "from __future__ import annotations": the fields' types are shown in the signatures of strategies.

import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict
from weakref import ref

import attrs
from torch.optim import Optimizer

from ..accelerators.base import Accelerator
from ..checkpoints.base import CheckpointIO
from ..environments.base import ClusterEnvironment
from ..errors import ConfigurationError, nearest, quoted
from ..precisions.base import Precision


class StrategyParts(TypedDict, total=False):
    """The arguments that every strategy takes: the parts it is composed of, each as an object or by name.

    A strategy's constructor takes them as ``**parts: Unpack[StrategyParts]`` and passes them to ``super().__init__``.
    """

    accelerator: Accelerator | str | None
    """The hardware."""
    cluster_environment: ClusterEnvironment | str | None
    """Tells a process its rank, the world size, and the main address and port."""
    checkpoint_io: CheckpointIO | str | None
    """How checkpoints are written and read."""
    precision: Precision | str | None
    """The dtype policy."""
    precision_plugin: Precision | str | None
    """Lightning's name for ``precision``; one of the two."""


class ProcessGroupParts(StrategyParts, total=False):
    """The arguments that every strategy over a process group takes."""

    process_group_backend: str | None
    """The ``torch.distributed`` backend; the accelerator's own unless given."""
    timeout: timedelta
    """How long a collective may wait for the other processes."""
    start_method: str
    """How processes are started that nothing else has started."""


def requested_parts(cls: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that the user passed to the constructor of ``cls``, by kind; those that are ``None`` are left out.

    Raises:
        ConfigurationError: An argument is unknown, or both ``precision`` and ``precision_plugin`` are given.
    """
    if unknown := sorted(arguments.keys() - StrategyParts.__annotations__.keys()):
        valid = signature(cls).parameters
        remedy = nearest(unknown[0], valid) or f" Valid: {quoted(sorted(valid))}."
        raise ConfigurationError(f"{cls.__name__}: unknown argument {quoted(unknown)}.{remedy}")
    parts = {kind: part for kind, part in arguments.items() if part is not None}
    if "precision_plugin" in parts:
        if "precision" in parts:
            raise ConfigurationError(
                f"{cls.__name__}: precision={parts['precision']!r} and precision_plugin={parts['precision_plugin']!r} "
                "are two names for one argument. Set one of them."
            )
        parts["precision"] = parts.pop("precision_plugin")
    return parts


class AllArguments:
    """The ``__signature__`` of strategies, made only when the signature of a class is read, which is rare."""

    def __get__(self, strategy: object, cls: type[Any]) -> inspect.Signature:
        return signature(cls)


def signature(cls: type[Any]) -> inspect.Signature:
    """The signature of ``cls``, a strategy, with every argument that its constructor takes.

    These are the constructor's own; if it has a ``**``, also the ``extra_arguments`` of its class, and the arguments of
    the next class in the method resolution order that has a constructor.
    """
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        constructor = base.__dict__.get("__init__")
        if constructor is None or base is object:
            continue
        parameters = [*inspect.signature(constructor).parameters.values()][1:]
        further = {one.name: one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        passes_on = any(one.kind == one.VAR_KEYWORD for one in parameters)
        if passes_on:
            further.update(base.__dict__.get("extra_arguments", {}))
        if found:  # those of a base class are passed on by name
            further = {name: one.replace(kind=one.KEYWORD_ONLY) for name, one in further.items()}
        found = {**found, **{name: one for name, one in further.items() if name not in found}}
        if not passes_on:
            break
    return inspect.Signature([*found.values()])


def keyword_parameters(fields: Mapping[str, Any]) -> dict[str, inspect.Parameter]:
    """Keyword-only parameters with these names and types, ``None`` by default."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {name: inspect.Parameter(name, keyword, default=None, annotation=type_) for name, type_ in fields.items()}


@attrs.frozen(kw_only=True)
class ProcessPlan:
    """Devices and processes of one run. A strategy carries this out and decides none of it again."""

    devices: tuple[str, ...]
    """The devices of one machine, such as ``("cpu", "cpu")``: one for each process, by local rank; or all devices of
    the one process, if it drives them all."""
    num_nodes: int
    """Number of machines."""
    world_size: int
    """Number of processes on all machines."""
    launcher: str | None
    """How the processes of the run are started, as in :attr:`core.Strategy.launcher`; ``None`` if none are."""
    process_group_backend: str | None
    """The ``torch.distributed`` backend; ``None`` if the run has no process group."""
    plan_for_ranks: str
    """The part of the Plan that started processes need, as JSON."""

    @property
    def processes_per_node(self) -> int:
        """Number of processes on each machine."""
        return self.world_size // self.num_nodes


class TrainerView:
    """The members of a strategy that are the Trainer's; without one, there is no module, optimizer or scheduler."""

    precision: Precision
    _trainer: ref[Any] | None = None

    def follow(self, trainer: Any) -> None:
        """Read the facts from ``trainer``, which is not kept alive."""
        self._trainer = ref(trainer)

    def _fact(self, name: str, default: Any) -> Any:
        trainer = None if self._trainer is None else self._trainer()
        return default if trainer is None else getattr(trainer, name)

    @property
    def precision_plugin(self) -> Precision:
        """``precision``, by Lightning's name."""
        return self.precision

    @property
    def lightning_module(self) -> Any:
        """The module of the running or the last run of the Trainer; ``None`` without one."""
        return self._fact("lightning_module", None)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Like :attr:`core.Trainer.optimizers`: the optimizers that this strategy has set up."""
        return self._fact("optimizers", [])  # type: ignore[no-any-return]

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """Like :attr:`core.Trainer.lr_scheduler_configs`."""
        return self._fact("lr_scheduler_configs", [])  # type: ignore[no-any-return]
