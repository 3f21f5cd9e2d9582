"""The Strategy: how a model is spread over devices and kept in step."""

from __future__ import annotations

import inspect
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..accelerators.base import Accelerator
from ..checkpoints.base import CheckpointIO
from ..checkpoints.locations import directory_of
from ..environments.base import ClusterEnvironment
from ..errors import ConfigurationError, CoreError
from ..precisions.base import Precision, check_applied, keep_state_dtype
from ..registration import REGISTRIES
from ..utilities.torch_private import copied_where_kept
from ..utilities.user_modules import import_all
from .calls import call_site, differing_facts
from .inputs import AllArguments, ProcessPlan, StrategyParts, TrainerView, keyword_parameters, requested_parts
from .training_step import StepMethods
from .wrapping import move_module, move_optimizer_state, unwrap_module

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Strategy(StepMethods, TrainerView, ABC):
    """How a model is spread over devices and kept in step.

    A strategy is composed of one Accelerator, one Precision, one CheckpointIO and one ClusterEnvironment. The user may
    pass any of them to the constructor; the front end resolves the rest and passes all to :meth:`connect` before it
    calls anything else. The methods come in five groups, and docs/strategy-authors.md says when to override which:

    * *identity and launch*: which process this is, how the others are started, set up and torn down.
    * *placement*: modules and optimizers on their devices, wrapped as the strategy needs them.
    * *step*: backward, clipping and the optimizer's step, bound once before the loop.
    * *collectives*: values that processes exchange.
    * *state*: what a checkpoint holds.

    Args:
        **parts: The parts; see :class:`core.strategies.StrategyParts`.

    Raises:
        ConfigurationError: An argument is unknown, or a part is given twice.
    """

    # -- declarations: what the strategy supports; class attributes, or set by the constructor -------------------

    name: str = ""
    """The name under which the user asked for it, or the name of its class."""
    accelerators: ClassVar[tuple[str, ...] | None] = None
    """Names of the accelerators it supports; ``None`` for any."""
    min_processes: ClassVar[int] = 1
    """The smallest world size it supports."""
    max_processes: ClassVar[int | None] = None
    """The largest world size it supports; ``None`` for any."""
    precisions: tuple[str, ...] | None = None
    """Names of the precisions it supports; ``None`` for any."""
    one_process_per_node: ClassVar[bool] = False
    """Whether one process drives all devices of a machine, rather than one device each."""
    supports_manual_optimization: bool = True
    """Whether backward may be called within the module's forward pass, any number of times; see
    :meth:`manual_gradients`."""
    manual_remedy: str = ""
    """What to use where manual optimization is not supported; by default another strategy."""
    supports_custom_loop: ClassVar[bool] = True
    """Whether :class:`core.Runtime` can use it; if not, it runs only whole training steps of the Trainer."""
    moves_batches: ClassVar[bool] = False
    """Whether it brings batches, or parts of them, to devices itself, so that a Module cannot override how."""
    applies_precision: ClassVar[bool] = True
    """Whether it calls the precision's hooks; ``False`` where an engine reads only what the precision declares."""
    inference_is_collective: ClassVar[bool] = False
    """Whether a forward pass without gradients needs all processes, as it does if each holds a part of the module."""
    keeps_replicas_equal: bool = True
    """Whether a step gives the result of one process with the joined batches, so that all modules stay equal."""
    syncs_batch_norm: ClassVar[bool] = False
    """Whether it can let batch norm layers normalize over all processes; with one process there is nothing to do."""
    compile_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Arguments of :func:`torch.compile` that the user has not given, such as another ``backend``."""
    checkpointed_weights: ClassVar[str] = "each"
    """Which weights a checkpoint has if processes have their own (``keeps_replicas_equal = False``): those of
    ``"each"`` process, so that resuming is exact, those of ``"rank 0"``, or their ``"mean"``."""
    copies_loaded_state: ClassVar[bool] = False
    """Whether its own methods that load states keep what they are given nowhere but in an optimizer's ``state``, from
    where it is copied: then a checkpoint's file is mapped into memory."""
    keeps_buffers_equal: bool = True
    """Whether each training pass begins with rank 0's buffers, such as running means, in all processes."""
    uses_process_group: ClassVar[bool] = False
    """Whether its processes join a ``torch.distributed`` process group."""
    launcher: str | None = None
    """How it starts processes that nothing else has started: ``None`` for not at all; ``"script"`` runs the user's
    script again in each; any other name, such as ``"spawn"`` or ``"fork"``, runs a function in each."""
    distributed_type: ClassVar[str | None] = None
    """:attr:`core.Runtime.distributed_type`; by default ``MULTI_`` and the kind of device, ``NO`` for one process."""
    default_checkpoint_io: str = "torch"
    """Name of the CheckpointIO whose format suits it: what ``checkpoint_io="auto"`` means."""
    engine_settings: Mapping[str, Any] = MappingProxyType({})
    """What scripts for Accelerate read, such as ``acme_plugin``; and ``device_mesh``, ``None`` before a run."""
    launch_command: ClassVar[str] = "torchrun"
    """The command that starts its processes, for the error that says they are missing."""
    extra_arguments: ClassVar[Mapping[str, inspect.Parameter]] = keyword_parameters(StrategyParts.__annotations__)
    """The arguments that the ``**`` of this class's own constructor takes and no base class does; ``help`` shows them,
    and the error for an unknown argument suggests them."""

    # -- the parts, set by connect -------------------------------------------------------------------------------

    accelerator: Accelerator
    checkpoint_io: CheckpointIO
    cluster_environment: ClusterEnvironment
    plan: ProcessPlan
    """The Plan's decision about devices and processes."""
    parallel_devices: Sequence[torch.device]
    """The devices of this machine's processes, by local rank; all of one process's devices if it drives several."""
    imported_modules: tuple[str, ...] = ()
    """The modules that each process imports first."""
    moves_modules: bool = True
    """Whether :meth:`setup_module` moves modules; the front end turns it off for one that the user has placed."""
    __signature__ = AllArguments()

    def __init__(self, **parts: Unpack[StrategyParts]) -> None:
        self.requested_parts: Mapping[str, Any] = MappingProxyType(requested_parts(type(self), parts))
        self._state_hooks: list[Any] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "register_strategies" in cls.__dict__:
            register: Callable[[Any], None] = cls.__dict__["register_strategies"].__get__(None, cls)
            register(REGISTRIES["strategy"])

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_trainer": None, "_state_hooks": [], "requested_parts": dict(self.requested_parts)}
        if "parallel_devices" in state:
            state["parallel_devices"] = [str(device) for device in self.parallel_devices]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        import_all(state.get("imported_modules", ()))
        self.__dict__.update(state, requested_parts=MappingProxyType(state["requested_parts"]))
        if "parallel_devices" in state:
            self.accelerator.import_backend()
            self.parallel_devices = [torch.device(device) for device in state["parallel_devices"]]

    def process_group_backend_for(self, accelerator: Accelerator, device: torch.device) -> str | None:
        """The ``torch.distributed`` backend that this strategy needs; ``None`` if it joins no process group.

        Resolution asks this before anything is connected, and writes the answer into the Plan.

        Args:
            accelerator: The accelerator of the run.
            device: One of the run's devices.

        Raises:
            BackendError: There is no backend for this type of device.
        """
        return accelerator.process_group_backend(device) if self.uses_process_group else None

    def launcher_for(self, processes_per_node: int, num_nodes: int) -> str | None:
        """How this strategy starts a run's processes, as in :attr:`launcher`; ``None`` if it need not or cannot.

        Resolution asks this if no cluster has started the processes, and writes the answer into the Plan.

        Args:
            processes_per_node: Number of processes on each machine.
            num_nodes: Number of machines. The user starts the script once on each.
        """
        return None if processes_per_node == 1 else self.launcher

    def connect(
        self,
        *,
        accelerator: Accelerator,
        precision: Precision,
        checkpoint_io: CheckpointIO,
        cluster_environment: ClusterEnvironment,
        plan: ProcessPlan,
    ) -> None:
        """Receive the parts that were resolved for one run. Called once, before all other methods.

        Override it to reject a combination that cannot work: no process has been started yet.

        Args:
            accelerator: The hardware.
            precision: The dtype policy.
            checkpoint_io: Writes and reads checkpoints.
            cluster_environment: Tells this process its ranks.
            plan: What was decided about devices and processes; kept as :attr:`plan`.
        """
        own_optimizers = type(self).setup_optimizers is Strategy.setup_optimizers
        parts = self.applies_precision
        check_applied(self.name, precision, parts=parts, state=parts and own_optimizers)
        self.accelerator = accelerator
        self.precision = precision
        self.checkpoint_io = checkpoint_io
        checkpoint_io.connect(self.default_checkpoint_io)
        self.cluster_environment = cluster_environment
        self.plan = plan
        self.parallel_devices = [torch.device(device) for device in plan.devices]
        cluster_environment.connect(plan.processes_per_node, plan.num_nodes)

    # -- who and where -------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """Number of processes on all machines."""
        return self.plan.world_size

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
        """Whether this process has global rank 0."""
        return self.global_rank == 0

    @property
    def local_processes(self) -> int:
        """Number of processes on this machine."""
        return self.plan.processes_per_node

    @property
    def num_peers(self) -> int:
        """Number of processes whose gradients make a step now; an engine may let them join and leave during a run."""
        return self.world_size

    @property
    def root_device(self) -> torch.device:
        """The device that this process works on; the first one, if it drives several."""
        return self.parallel_devices[self.local_rank]

    @property
    def data_shards(self) -> int:
        """The number of parts that the data is split into."""
        return self.world_size

    @property
    def data_shard(self) -> int:
        """The part of the data that this process takes, from 0."""
        return self.global_rank

    # -- identity and launch: the life of a run ------------------------------------------------------------------

    def launch(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function`` in every process of the run, starting those that nothing else has started.

        Returns:
            What it returned in this process, or in rank 0 if this process only supervises the others.

        Raises:
            LaunchError: A process could not be started, or one of them failed.
        """
        return function(*args, **kwargs)

    def setup_environment(self) -> None:
        """Prepare this process: its device, the precision on it, and the connection to the other processes."""
        self.accelerator.setup_device(self.root_device)
        self.precision.connect(self.accelerator.autocast_device_type(self.root_device))

    def setup(self, trainer: Any) -> None:
        """Called by a Trainer, not by a Runtime, in each process before each stage; for what needs ``trainer``."""

    def teardown(self, failed: bool = False) -> None:
        """Disconnect from the other processes and free resources; may be called twice.

        Args:
            failed: Leave at once, without waiting for the others, since this process ends with an error.
        """
        while self._state_hooks:
            self._state_hooks.pop().remove()
        self.precision.teardown()
        self.end_saving(failed)
        self.cluster_environment.teardown()
        self.accelerator.teardown()

    def end_saving(self, failed: bool = False) -> None:
        """Wait for writes in the background, while the processes are still connected.

        Args:
            failed: An error already ends this process: one of the CheckpointIO is only logged.

        Raises:
            CheckpointError: A checkpoint could not be written.
        """
        try:
            self.checkpoint_io.teardown()
        except CoreError as error:
            if not failed:
                raise
            logger.error("the run ends with an error, and a checkpoint could not be written: %s", error)

    # -- placement: modules and optimizers -----------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """``module`` in the precision's dtypes, on this process's device, wrapped as the strategy needs it."""
        converted = self.precision.convert_module(module)
        return move_module(converted, self.root_device) if self.moves_modules else converted

    def unwrap_module(self, module: nn.Module) -> nn.Module:
        """The user's own module; ``module`` is that module or what :meth:`setup_module` returned for it."""
        return unwrap_module(module)

    def inference_module(self, module: nn.Module) -> nn.Module:
        """The module that runs forward passes without gradients for ``module``, which :meth:`setup_module` returned.

        It must not wait for the other processes, unless :attr:`inference_is_collective`.
        """
        return module

    def check_sync_batch_norm(self) -> None:
        """Reject ``sync_batchnorm=True`` if :meth:`sync_batch_norm` cannot do it.

        Raises:
            ConfigurationError: It cannot.
        """
        if self.world_size == 1 or (self.syncs_batch_norm and self.keeps_replicas_equal):
            return
        reason = (
            "it cannot exchange values within a forward pass" if self.keeps_replicas_equal else "its replicas differ"
        )
        raise ConfigurationError(
            f"sync_batchnorm=True: strategy {self.name!r} cannot normalize over the batches of all processes: "
            f"{reason}. Leave it out, or use strategy='ddp'."
        )

    def check_compile(self, argument: str) -> None:
        """Reject ``argument``, which asks to compile a module's steps with :func:`torch.compile`, if it has no effect.

        Raises:
            ConfigurationError: It would have none.
        """
        if not self.supports_custom_loop:
            raise ConfigurationError(
                f"{argument}: strategy {self.name!r} compiles whole training steps itself. Leave it out."
            )

    def sync_batch_norm(self, module: nn.Module) -> list[nn.Module]:
        """Let the batch norm layers of ``module`` normalize over the batches of all processes, in place.

        The front end calls this before :meth:`setup_module` if the user asks for it. With one process it does nothing.

        Returns:
            The layers, which :func:`core.strategies.batch_norm.desynchronize` restores.
        """
        self.check_sync_batch_norm()
        return []

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizers as the strategy needs them, their state on this process's device."""
        for optimizer in optimizers:
            move_optimizer_state(optimizer)
            self.precision.prepare_optimizer(optimizer)
            self._state_hooks += keep_state_dtype(optimizer, self.precision.state_dtype)
        return list(optimizers)

    # -- step: see core.strategies.training_step -----------------------------------------------------------------

    def join_uneven(self, joinables: Sequence[Any]) -> AbstractContextManager[Any]:
        """A context in which processes without further batches take part in the others' reductions of ``joinables``.

        Raises:
            ConfigurationError: The strategy has several processes, and cannot do so.
        """
        if self.world_size == 1:
            return nullcontext()
        raise ConfigurationError(
            f"join_uneven_inputs: strategy {self.name!r} needs even_batches=True. Set it, or use strategy='ddp'."
        )

    # -- collectives: every process calls them, in the same order ------------------------------------------------

    @abstractmethod
    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """``tensor`` combined elementwise over all processes, equal on each; the input is not changed.

        The mean of an integer tensor is a float32 tensor, and the sum or product of a bool tensor an int64 tensor.

        Raises:
            ConfigurationError: ``reduction`` is not one of :data:`core.strategies.REDUCTIONS`, or shapes or dtypes
                differ between processes.
        """

    @abstractmethod
    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, stacked by rank: shape ``(world_size, *tensor.shape)``.

        Raises:
            ConfigurationError: Shapes or dtypes differ between processes.
        """

    @abstractmethod
    def broadcast(self, obj: T, src: int = 0) -> T:
        """``obj``, any picklable object, as the process with rank ``src`` has it."""

    @abstractmethod
    def barrier(self, name: str | None = None) -> None:
        """Wait until every process has called this; ``name`` is for engines that show it in their logs."""

    @abstractmethod
    def all_gather_object(self, obj: T) -> list[T]:
        """``obj``, any picklable object, of every process, by rank."""

    def differing(self, call: str, facts: str, site: str = "") -> list[str] | None:
        """Compare ``facts`` over all processes, which all make ``call``, in the user's line ``site``.

        Returns:
            Those of every process, by rank, if they are not equal; ``None`` if they are.
        """
        return differing_facts(self.all_gather_object((call, site or call_site(), facts)))

    def assume_alike(self) -> AbstractContextManager[None]:
        """A context in which :meth:`reduce` and :meth:`all_gather` do not compare shapes and dtypes over processes."""
        return nullcontext()

    def gather_shards(self, obj: T) -> list[T]:
        """``obj`` of one process for each part of the data, by part; of processes with the same part, the first's."""
        by_shard: dict[int, T] = {}
        for shard, item in self.all_gather_object((self.data_shard, obj)):
            by_shard.setdefault(shard, item)
        return [by_shard[shard] for shard in sorted(by_shard)]

    # -- state: every process calls these ------------------------------------------------------------------------

    @property
    def saving_is_collective(self) -> bool:
        """Whether saving needs every process: the state is divided among them, or it cannot be known who calls it."""
        return self.world_size > 1

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """The state of the user's own ``module``; its tensors may be divided among the processes."""
        return module.state_dict()

    def whole_module_state(self, module: nn.Module) -> dict[str, Any]:
        """Like :meth:`module_state`, but every tensor is whole, at least in rank 0."""
        return self.module_state(module)

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load what :meth:`module_state` returned."""
        module.load_state_dict(copied_where_kept(module, state))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of ``optimizer``."""
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load what :meth:`optimizer_state` returned."""
        optimizer.load_state_dict(state)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write ``checkpoint``, and return once it is committed, or with ``"async"`` copied.

        Raises:
            CheckpointError: It could not be written; raised in every process.
        """
        options = () if storage_options is None else (storage_options,)
        with nullcontext() if self.checkpoint_io.makes_directories else directory_of(path):
            self.checkpoint_io.save_checkpoint(checkpoint, path, *options)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Read a checkpoint, its tensors on the CPU.

        Raises:
            CheckpointError: It is absent, uncommitted or damaged.
        """
        load = self.checkpoint_io.load_checkpoint
        # A CheckpointIO written for Lightning's interface may take the path alone.
        return load(path, map_location="cpu") if "map_location" in inspect.signature(load).parameters else load(path)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint, from rank 0."""
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(path)
