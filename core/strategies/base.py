"""The Strategy: how a model is spread over devices and kept in step."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.accelerators.base import Accelerator
from core.checkpoints.base import CheckpointIO
from core.environments.base import ClusterEnvironment
from core.errors import ConfigurationError, quoted
from core.precisions.base import Precision
from core.registration import StrategyRegistry
from core.strategies.moving import move_module, move_optimizer_state

__all__ = ["REDUCTIONS", "Strategy", "TrainingStepOptions"]

T = TypeVar("T")

REDUCTIONS = ("mean", "sum", "min", "max", "product")
"""The words that ``reduce`` takes."""


@attrs.frozen(kw_only=True)
class TrainingStepOptions:
    """What a whole training step does beside forward and backward."""

    optimizer: Optimizer
    """The optimizer that is stepped, as :meth:`Strategy.setup_optimizers` returned it."""
    module: nn.Module
    """The module whose gradients are reduced and clipped, as :meth:`Strategy.setup_module` returned it."""
    accumulate: int = 1
    """Batches a step; each counts with its share of so many."""
    clip_value: float | None = None
    """As in :meth:`core.Precision.clip_gradients`."""
    clip_algorithm: str = "norm"
    """As in :meth:`core.Precision.clip_gradients`."""


TrainingStep = Callable[[Any, int, bool], Tensor | None]
"""One batch: ``step(batch, batch_idx, is_step_end)`` runs forward and backward, and the optimizer where
``is_step_end``. Returns the loss, or ``None`` where ``forward`` skipped the batch."""


class Strategy(ABC):
    """How a model is spread over devices and kept in step.

    A strategy is composed of one Accelerator, one Precision, one CheckpointIO and one ClusterEnvironment. What is given
    to the constructor counts as the user's word; the front end resolves the rest and hands all parts to :meth:`connect`
    before anything else is called.

    Args:
        accelerator: The hardware, as an object or by name.
        cluster_environment: Who this process is, as an object or by name.
        checkpoint_io: How checkpoints are written, as an object or by name.
        precision_plugin: The dtype policy, as an object or by name.
    """

    name: str = ""
    """The name it was asked for by; a class given directly goes by its class name."""
    accelerators: ClassVar[tuple[str, ...] | None] = None
    """Names of the accelerators it serves; ``None`` for any."""
    min_processes: ClassVar[int] = 1
    """The smallest world size it serves."""
    max_processes: ClassVar[int | None] = None
    """The largest world size it serves; ``None`` for any."""
    precisions: tuple[str, ...] | None = None
    """Names of the precisions it serves; ``None`` for any."""
    clip_algorithms: ClassVar[tuple[str, ...]] = ("norm", "value")
    """How it can limit gradients; see :meth:`core.Precision.clip_gradients`."""
    one_process_per_node: ClassVar[bool] = False
    """Whether one process drives all the devices of a machine, rather than one each."""
    serves_own_loop: ClassVar[bool] = True
    """Whether :class:`core.Runtime` may use it; else it runs whole training steps of the Trainer only."""
    infers_together: ClassVar[bool] = False
    """Whether even a forward pass without gradients needs all processes, as where each holds a part of the module."""
    trains_as_one: bool = True
    """Whether the processes train as one does with their batches joined, and so have the same module after a step."""
    uses_process_group: ClassVar[bool] = False
    """Whether its processes meet in a ``torch.distributed`` process group."""
    launcher: str | None = None
    """How it starts processes that nobody else did. ``None`` for not at all; ``"script"`` starts the user's script once
    more for each; any other word, such as ``"spawn"`` or ``"fork"``, runs a function in each."""

    started_by: ClassVar[str] = "torchrun"
    """The command that starts its processes, for the message that says they are missing."""

    accelerator: Accelerator
    precision: Precision
    checkpoint_io: CheckpointIO
    cluster_environment: ClusterEnvironment
    parallel_devices: Sequence[torch.device]
    """The devices of this machine's processes, by local rank; all of one process's, if it drives them all."""

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        cluster_environment: ClusterEnvironment | str | None = None,
        checkpoint_io: CheckpointIO | str | None = None,
        precision_plugin: Precision | str | None = None,
    ) -> None:
        given = {
            "accelerator": accelerator,
            "cluster_environment": cluster_environment,
            "checkpoint_io": checkpoint_io,
            "precision": precision_plugin,
        }
        self.given = MappingProxyType({kind: word for kind, word in given.items() if word is not None})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "register_strategies" in cls.__dict__:
            register: Callable[[Any], None] = cls.__dict__["register_strategies"].__get__(None, cls)
            register(StrategyRegistry)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "given": dict(self.given)}
        if "parallel_devices" in state:
            state["parallel_devices"] = [str(device) for device in self.parallel_devices]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, given=MappingProxyType(state["given"]))
        if "parallel_devices" in state:
            self.accelerator.import_backend()
            self.parallel_devices = [torch.device(device) for device in state["parallel_devices"]]

    def connect(
        self,
        *,
        accelerator: Accelerator,
        precision: Precision,
        checkpoint_io: CheckpointIO,
        cluster_environment: ClusterEnvironment,
        parallel_devices: Sequence[torch.device],
        num_nodes: int,
        plan: str = "{}",
    ) -> None:
        """Take the parts that were resolved for one run.

        Args:
            accelerator: The hardware.
            precision: The dtype policy.
            checkpoint_io: How checkpoints are written.
            cluster_environment: Who this process is.
            parallel_devices: One device for each process on this machine; all of them, if one process drives them.
            num_nodes: Machines.
            plan: The Plan as JSON, for processes that are started.
        """
        self.accelerator = accelerator
        self.precision = precision
        self.checkpoint_io = checkpoint_io
        self.cluster_environment = cluster_environment
        self.parallel_devices = list(parallel_devices)
        self._plan = plan
        cluster_environment.connect(self.local_processes, num_nodes)

    # -- who and where -------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """How many processes there are in all."""
        return self.cluster_environment.world_size

    @property
    def global_rank(self) -> int:
        """This process's number among all, from 0."""
        return self.cluster_environment.global_rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine, from 0."""
        return self.cluster_environment.local_rank

    @property
    def node_rank(self) -> int:
        """This machine's number, from 0."""
        return self.cluster_environment.node_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0 of all."""
        return self.global_rank == 0

    @property
    def local_processes(self) -> int:
        """How many processes there are on this machine."""
        return 1 if self.one_process_per_node else len(self.parallel_devices)

    @property
    def root_device(self) -> torch.device:
        """The device that this process works on; the first, if it drives all of a machine's."""
        return self.parallel_devices[self.local_rank]

    @property
    def data_shards(self) -> int:
        """Into how many parts the data is split."""
        return self.world_size

    @property
    def data_shard(self) -> int:
        """Which of those parts this process takes."""
        return self.global_rank

    # -- life ----------------------------------------------------------------------------------------------------

    def launch(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function`` in every process of the run, starting those that nobody else started.

        Returns:
            What it returned in this process; where this process is only the supervisor, in rank 0.

        Raises:
            LaunchError: A process could not be started, or one of them failed.
        """
        return function(*args, **kwargs)

    def setup_environment(self) -> None:
        """Make this process ready: its device, the precision on it, and the connection to the others."""
        self.accelerator.setup_device(self.root_device)
        self.precision.connect(self.accelerator.autocast_device_type(self.root_device))

    def teardown(self, failed: bool = False) -> None:
        """Leave the others and free what is held; may be called twice.

        Args:
            failed: Leave at once, without waiting for the others, since this process is ending with an error.
        """
        del failed
        self.precision.teardown()
        self.checkpoint_io.teardown()
        self.cluster_environment.teardown()
        self.accelerator.teardown()

    # -- modules, optimizers and the step ------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """``module`` in the precision's dtypes, on this process's device, wrapped as the strategy needs it."""
        return move_module(self.precision.convert_module(module), self.root_device)

    def unwrap_module(self, module: nn.Module) -> nn.Module:
        """The user's own module behind ``module``, which may be what :meth:`setup_module` returned."""
        return module

    def inference_module(self, module: nn.Module) -> nn.Module:
        """What runs a forward pass without gradients, of ``module`` as it was set up.

        It must not wait for the other processes, unless :attr:`infers_together`.
        """
        return module

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizers as the strategy needs them, their state on this process's device."""
        for optimizer in optimizers:
            move_optimizer_state(optimizer)
        return list(optimizers)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar, and reduce them over processes."""
        self.precision.backward(loss, *args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients; returns what the optimizer's ``step`` returns."""
        return self.precision.optimizer_step(optimizer, closure)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Undo the scaling of the loss in the optimizer's gradients, reduced; see :class:`core.Precision`."""
        self.precision.unscale_gradients(optimizer)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clip_value: float, algorithm: str = "norm"
    ) -> Tensor | None:
        """Unscale and limit the module's gradients; see :meth:`core.Precision.clip_gradients`."""
        self.unscale_gradients(optimizer)
        return self.clip_parameters(module.parameters(), clip_value, algorithm)

    def clip_parameters(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Limit gradients of ``parameters``, unscaled before; see :meth:`core.Precision.clip_gradients`."""
        return self.precision.clip_gradients(parameters, clip_value, algorithm, norm_type)

    def check_clip_algorithm(self, algorithm: str, argument: str = "algorithm") -> None:
        """Refuse a word, given as ``argument``, that is none of :attr:`clip_algorithms`.

        Raises:
            ConfigurationError: As said.
        """
        if algorithm not in self.clip_algorithms:
            raise ConfigurationError(
                f"{argument}={algorithm!r}: not how strategy {self.name!r} clips gradients. Valid: "
                f"{quoted(self.clip_algorithms)}."
            )

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward leaves gradients unreduced, for accumulation; ``module`` as it was set up."""
        del module
        return nullcontext()

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """The whole training step, composed once before the loop.

        A strategy whose engine owns backward and step, marks where a step ends, or runs the step only as one compiled
        whole, overrides this.

        Args:
            forward: ``forward(batch, batch_idx)`` gives the loss, a scalar, or ``None`` to skip the batch.
            options: What else a step does.
        """
        optimizer, module = options.optimizer, options.module
        backward, zero_grad = self.bound_backward(), optimizer.zero_grad
        apply = self.bound_optimizer_step(optimizer)
        if options.accumulate == 1 and options.clip_value is None:

            def plain_step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
                loss = forward(batch, batch_idx)
                if loss is not None:
                    backward(loss)
                    apply()
                    zero_grad()
                return loss

            return plain_step

        clip_value, accumulate = options.clip_value, options.accumulate
        has_gradients = False

        def accumulating_step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            nonlocal has_gradients
            with nullcontext() if is_step_end else self.no_sync(module):
                loss = forward(batch, batch_idx)
                if loss is not None:
                    backward(loss / accumulate if accumulate > 1 else loss)
                    has_gradients = True
            if is_step_end and has_gradients:
                has_gradients = False
                if clip_value is not None:
                    self.clip_gradients(module, optimizer, clip_value, options.clip_algorithm)
                apply()
                zero_grad()
            return loss

        return accumulating_step

    def bound_backward(self) -> Callable[..., None]:
        """What ``backward`` comes down to, for the loop: the tensor's own where nothing overrides it.

        It is asked for anew whenever modules or optimizers were prepared.
        """
        if type(self).backward is Strategy.backward:
            return self.precision.backward if self.precision.acts_in("backward") else _tensor_backward
        return self.backward

    def bound_optimizer_step(self, optimizer: Optimizer) -> Callable[[], Any]:
        """What ``optimizer_step`` comes down to, for the loop: the optimizer's own where nothing overrides it."""
        return optimizer.step if self.steps_plainly() else partial(self.optimizer_step, optimizer)

    def steps_plainly(self) -> bool:
        """Whether stepping an optimizer needs nobody but the optimizer."""
        return type(self).optimizer_step is Strategy.optimizer_step and not self.precision.acts_in("optimizer_step")

    # -- collectives ---------------------------------------------------------------------------------------------

    @abstractmethod
    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """``tensor`` combined elementwise over all processes, the same on each; the input is left as it was.

        Raises:
            ConfigurationError: ``reduction`` is none of :data:`REDUCTIONS`.
        """

    @abstractmethod
    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, stacked by rank: shape ``(world_size, *tensor.shape)``.

        Raises:
            ConfigurationError: Shapes or dtypes differ between processes.
        """

    @abstractmethod
    def broadcast(self, obj: T, src: int = 0) -> T:
        """``obj``, any picklable object, as process ``src`` has it."""

    @abstractmethod
    def barrier(self, name: str | None = None) -> None:
        """Wait until every process is here."""

    @abstractmethod
    def all_gather_object(self, obj: T) -> list[T]:
        """``obj``, any picklable object, of every process, by rank."""

    def gather_shards(self, obj: T) -> list[T]:
        """``obj`` of one process for each part of the data, by part; of processes that take the same, the first's."""
        by_shard: dict[int, T] = {}
        for shard, item in self.all_gather_object((self.data_shard, obj)):
            by_shard.setdefault(shard, item)
        return [by_shard[shard] for shard in sorted(by_shard)]

    @staticmethod
    def check_reduction(reduction: str) -> None:
        """Refuse a word that is none of :data:`REDUCTIONS`.

        Raises:
            ConfigurationError: As said.
        """
        if reduction not in REDUCTIONS:
            raise ConfigurationError(f"reduction={reduction!r}: unknown. Valid: {quoted(REDUCTIONS)}.")

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """The state of the user's own ``module``; every process calls it."""
        return module.state_dict()

    def whole_module_state(self, module: nn.Module) -> dict[str, Any]:
        """As :meth:`module_state`, every tensor whole, at least in process 0; every process calls it."""
        return self.module_state(module)

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`module_state` gave."""
        module.load_state_dict(state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of ``optimizer``; every process calls it."""
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Take back what :meth:`optimizer_state` gave."""
        optimizer.load_state_dict(state)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write ``checkpoint``; every process calls it, and returns once it is committed.

        Raises:
            CheckpointError: It could not be written; raised in every process.
        """
        self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Read a checkpoint, its tensors on the CPU; every process calls it.

        Raises:
            CheckpointError: It is absent, uncommitted or damaged.
        """
        return self.checkpoint_io.load_checkpoint(path, map_location="cpu")

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint; every process may call it, rank 0 acts."""
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(path)


def _tensor_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
    if args or kwargs:
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]
    else:  # the common call; Python makes it without building a tuple and a dictionary
        loss.backward()  # type: ignore[no-untyped-call]
