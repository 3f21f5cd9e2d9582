"""Strategies of several processes: over any engine, and over a ``torch.distributed`` process group."""

from __future__ import annotations

import os
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, ClassVar, TypeVar, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..accelerators.base import Accelerator
from ..checkpoints.agreement import run_on_each_rank
from ..environments.base import ClusterEnvironment
from ..environments.local import LAUNCH_VARIABLES, LAUNCHED, LocalEnvironment, claim_ranks, own_environ
from ..errors import ConfigurationError, WrongTypeError, quoted
from ..precisions.base import state_dtypes_kept
from ..random import get_host_rng_state
from ..utilities.nested import map_tensors
from ..utilities.objects import broadcast_pickled, by_rank, describe_tensor, gather_pickled, pickled, sendable
from ..utilities.torch_private import Store
from . import process_group
from .base import Strategy
from .batch_norm import has_torch_kernels, synchronize
from .inputs import StrategyParts
from .launchers import FunctionLauncher, ScriptLauncher
from .launchers.function import run_in_worker
from .launchers.interrupts import end_with_launcher
from .meeting_point import end_saving, tell_of_end
from .process_group import thread_limit
from .reductions import REDUCTIONS, as_reduced, as_result, as_sent, check_reduction, copy_for_reduction
from .store.notes import Board
from .store.tcp_store import connect_store, host_store
from .time_limits import END_REQUEST_SECONDS, FAILED_TOO_SECONDS

T = TypeVar("T")

START_METHODS = ("script", "spawn", "fork")

_script_stores: list[Store] = []
"""Keeps the stores of a script's processes open: later runs of the script use them again."""


class ParallelStrategy(Strategy):
    """Several processes, one device each, that an engine connects.

    A subclass implements :meth:`init_dist_connection`, which connects the process to the engine, and the collective
    :meth:`all_gather_object`. :meth:`all_reduce`, :meth:`all_gather_list`, :meth:`broadcast` and :meth:`barrier` are
    built on that collective; override those for which the engine has something faster. :meth:`reduce` and
    :meth:`all_gather` check arguments, copy, and divide for a mean, for all engines alike.

    Args:
        **parts: As in :class:`core.strategies.StrategyParts`.
    """

    syncs_batch_norm: ClassVar[bool] = True
    equal_buffers_in_evaluation: ClassVar[bool] = False
    """Whether evaluation uses rank 0's buffers in all processes although :attr:`keeps_buffers_equal` is false."""

    _limits_threads = False
    _compares = True
    """Whether collectives compare shapes and dtypes over processes first."""

    # -- identity and launch -------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Prepare this process's device, then connect to the other processes."""
        super().setup_environment()
        if self.local_processes > 1 and "OMP_NUM_THREADS" not in self.cluster_environment.environ:
            thread_limit.enter()
            self._limits_threads = True
        try:
            self.init_dist_connection()
        except BaseException:
            self._free_threads()
            raise

    @abstractmethod
    def init_dist_connection(self) -> None:
        """Connect this process to the others; :meth:`teardown` disconnects it."""

    def teardown(self, failed: bool = False) -> None:
        """Restore the number of threads; see :meth:`Strategy.teardown`."""
        self._free_threads()
        super().teardown(failed)

    def _free_threads(self) -> None:
        if self._limits_threads:
            self._limits_threads = False
            thread_limit.leave()

    # -- placement -----------------------------------------------------------------------------------------------

    def sync_batch_norm(self, module: nn.Module) -> list[nn.Module]:
        """Use :meth:`all_reduce`, or torch's own layers where they can run; see :meth:`Strategy.sync_batch_norm`."""
        super().sync_batch_norm(module)
        if self.world_size == 1:
            return []
        is_native = self.uses_process_group and has_torch_kernels(self.root_device)
        return synchronize(module, None if is_native else partial(self.all_reduce, reduction="sum"))

    # -- collectives ---------------------------------------------------------------------------------------------

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """Combined over all processes; see :meth:`Strategy.reduce`."""
        known = check_reduction(reduction, tensor.dtype)
        self._check_alike(f"strategy.reduce({reduction!r})", tensor)
        result = self.all_reduce(copy_for_reduction(tensor, self.root_device, known), reduction)
        return as_result(result.div_(self.world_size) if known.is_mean else result, tensor.dtype)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Stacked by rank; see :meth:`Strategy.all_gather`."""
        self._check_alike("strategy.all_gather", tensor)
        own = sendable(tensor.detach().to(self.root_device))
        return torch.stack(self.all_gather_list(own))

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """``tensor`` combined elementwise over all processes, for :meth:`reduce`, which divides by the world size.

        Args:
            tensor: Contiguous, on this process's device, of equal shape and dtype in all; may be changed in place.
            reduction: A name of :data:`core.strategies.REDUCTIONS`; a mean is a sum here.
        """
        stacked = torch.stack(self.all_gather_list(tensor))
        return REDUCTIONS[reduction].combine(stacked).to(tensor.dtype)

    def all_gather_list(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, by rank, for :meth:`all_gather`.

        Args:
            tensor: On this process's device, of equal shape and dtype in all processes; contiguous, and
                ``tensor.view(-1).view(torch.uint8)`` are its bytes.
        """
        return [part.to(self.root_device) for part in self.all_gather_object(tensor.cpu())]

    def broadcast(self, obj: T, src: int = 0) -> T:
        """The object of the process with rank ``src``; see :meth:`Strategy.broadcast`."""
        return self.all_gather_object(obj)[src]

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process has called this."""
        self.all_gather_object(None)

    def broadcast_module(self, module: nn.Module, src: int = 0) -> None:
        """Give ``module`` the parameters and buffers that it has in the process with rank ``src``."""
        with torch.no_grad():
            for tensor in chain(module.parameters(), module.buffers()):
                self.broadcast_tensor(tensor, src)

    def broadcast_tensor(self, tensor: Tensor, src: int = 0) -> None:
        """Overwrite ``tensor`` with the tensor of rank ``src``, which has the same shape and dtype."""
        tensor.copy_(self.broadcast(tensor.cpu(), src))

    def broadcast_optimizer(self, optimizer: Optimizer, src: int = 0) -> None:
        """Give ``optimizer`` the state and the parameter groups' settings of the process with rank ``src``."""
        is_source = self.global_rank == src
        state = self.broadcast(map_tensors(Tensor.cpu, optimizer.state_dict()) if is_source else None, src)
        if state is not None and not is_source:
            with state_dtypes_kept(optimizer):
                optimizer.load_state_dict(state)

    def run_on_each_rank(self, function: Callable[[], T]) -> list[T]:
        """Call ``function`` in every process.

        Returns:
            What it returned in each process, by rank.

        Raises:
            CheckpointError: It raised an exception in some process; raised in every process.
        """
        return run_on_each_rank(function, self.all_gather_object)

    def differing(self, call: str, facts: str, site: str = "") -> list[str] | None:
        """By a checksum, in one small collective; see :meth:`Strategy.differing`."""
        if self.world_size == 1:
            return None
        checksum = torch.tensor([zlib.crc32(f"{call} {facts}".encode())], device=self.root_device)
        sums = torch.cat(self.all_gather_list(checksum)).tolist()
        return super().differing(call, facts, site) if len(set(sums)) > 1 else None

    @contextmanager
    def assume_alike(self) -> Iterator[None]:
        """See :meth:`Strategy.assume_alike`."""
        before, self._compares = self._compares, False
        try:
            yield
        finally:
            self._compares = before

    def _check_alike(self, call: str, tensor: Tensor) -> None:
        """Reject tensors that differ in shape or dtype: the collective itself would hang, abort or mix up bytes."""
        if self._compares and (given := self.differing(call, describe_tensor(tensor))) is not None:
            raise ConfigurationError(
                f"tensor: shapes or dtypes differ between processes: {by_rank(given)}. Pass tensors of the same shape "
                "and dtype in every process; pad them if necessary."
            )

    # -- state ---------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Rank 0 writes, or each process its part; an error in one process is raised in all."""
        save: Callable[[], object] = partial(super().save_checkpoint, checkpoint, path, storage_options)
        if not self.checkpoint_io.is_collective:
            save = partial(self.run_on_each_rank, save if self.is_global_zero else lambda: None)
        save()


class ProcessGroupStrategy(ParallelStrategy):
    """Several processes, one device each, that join a ``torch.distributed`` process group.

    Args:
        process_group_backend: The ``torch.distributed`` backend; the accelerator's own unless given.
        timeout: How long a collective may wait for the other processes.
        start_method: How processes are started that nothing else has started: ``"script"`` runs the script again in
            each, ``"spawn"`` and ``"fork"`` run a function in each.
        **parts: As in :class:`core.strategies.StrategyParts`.

    Raises:
        ConfigurationError: An argument is unknown or has an invalid value.
        WrongTypeError: ``timeout`` is not a :class:`datetime.timedelta`.
    """

    uses_process_group: ClassVar[bool] = True

    def __init__(
        self,
        *,
        process_group_backend: str | None = None,
        timeout: timedelta = timedelta(minutes=30),
        start_method: str = "script",
        **parts: Unpack[StrategyParts],
    ) -> None:
        super().__init__(**parts)
        if start_method not in START_METHODS:
            raise ConfigurationError(f"start_method={start_method!r}: unknown. Valid: {quoted(START_METHODS)}.")
        if not isinstance(timeout, timedelta):
            raise WrongTypeError(f"timeout={timeout!r}: must be a datetime.timedelta, such as timedelta(minutes=30).")
        self.launcher = start_method
        self.process_group_backend = process_group_backend
        self.timeout = timeout
        self._group: process_group.JoinedGroup | None = None
        self._store: Store | None = None
        self._script: ScriptLauncher | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_store": None, "_group": None, "_script": None}  # a copy has its own

    def process_group_backend_for(self, accelerator: Accelerator, device: torch.device) -> str | None:
        """``process_group_backend`` if it was given, otherwise the accelerator's own; see :class:`Strategy`."""
        if self.process_group_backend is not None:
            return self.process_group_backend
        return super().process_group_backend_for(accelerator, device)

    def connect(self, **parts: Any) -> None:
        """Receive the parts of one run; see :meth:`Strategy.connect`.

        Raises:
            ConfigurationError: This strategy must start the processes, but the cluster environment is not ``local``.
        """
        super().connect(**parts)
        environment = self.cluster_environment
        if self.plan.launcher in START_METHODS and not isinstance(environment, LocalEnvironment):
            raise ConfigurationError(
                f"strategy={self.name!r} cannot start processes under cluster_environment={environment.name!r}. "
                "Set cluster_environment='local', or start the processes with the cluster's own launcher."
            )
        if environment.creates_processes_externally and (
            environment.hosts_store or isinstance(environment, LocalEnvironment)
        ):
            tell_of_end(environment.global_rank, self._connect_briefly)

    def launch(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function`` in every process of the run; see :meth:`Strategy.launch`."""
        environment = self._current_environment()
        if environment.leaves_orphans:
            end_with_launcher(environment.global_rank)
        if self.plan.launcher is None or environment.creates_processes_externally:
            return function(*args, **kwargs)
        if environment.starts_processes:
            return self._run_in_cluster(environment, function, args, kwargs)
        assert isinstance(environment, LocalEnvironment)  # see connect
        if self.plan.launcher != "script":
            return self._run_function(environment, function, args, kwargs)
        if self._script is None:
            self._script = self._start_script(environment)
        return function(*args, **kwargs)

    def _current_environment(self) -> ClusterEnvironment:
        """The cluster environment, read again if an earlier run of this script has started processes meanwhile.

        Those processes serve this run too, and this process is local rank 0 among them.
        """
        is_local = isinstance(self.cluster_environment, LocalEnvironment)
        if self.launcher == "script" and is_local and LAUNCHED in (environ := own_environ()):
            self.cluster_environment = LocalEnvironment(environ)
            self.cluster_environment.connect(self.plan.processes_per_node, self.plan.num_nodes)
        return self.cluster_environment

    def _start_script(self, environment: LocalEnvironment) -> ScriptLauncher:
        """Serve the store, and start this script again for each further process of this machine."""
        self._store = self._open_store(environment)
        _script_stores.append(self._store)
        variables = partial(environment.launch_variables, plan=self.plan.plan_for_ranks)
        launcher = ScriptLauncher(self.local_processes, variables, strategy=self.name)
        launcher.start()
        # From here on this process is local rank 0 of those processes, in later runs of this script too.
        os.environ.update(variables(0))
        claim_ranks([LAUNCHED], LAUNCH_VARIABLES)
        return launcher

    def _run_function(self, environment: LocalEnvironment, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        """Serve the store, and call ``function`` in a started process for each device."""
        store = self._open_store(environment)  # stays open as long as this variable lives
        is_fork = self.plan.launcher == "fork"
        launcher = FunctionLauncher(
            self.local_processes,
            partial(environment.launch_variables, plan=self.plan.plan_for_ranks),
            strategy=self.name,
            start_method="fork" if is_fork else "spawn",
            fork_unsafe_reason=self.accelerator.fork_unsafe_reason() if is_fork else None,
        )
        result: T = launcher.launch(run_in_worker, self, get_host_rng_state(), function, args, kwargs)
        del store
        return result

    def _run_in_cluster(self, environment: ClusterEnvironment, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        """Call ``function`` in the processes that the cluster environment starts."""
        result: T = environment.run_function(
            run_in_worker,
            (self, get_host_rng_state(), function, args, kwargs),
            {},
            variables={LAUNCHED: self.plan.plan_for_ranks},
            accelerator=self.accelerator.name,
            strategy=self.name,
        )
        return result

    def _connect_briefly(self) -> Store:
        """The store, for a process that ends and has never joined a run."""
        environment, limit = self.cluster_environment, timedelta(seconds=END_REQUEST_SECONDS)
        return connect_store(environment.main_address, environment.main_port, timeout=limit)

    def _open_store(self, environment: ClusterEnvironment) -> Store:
        """The store in which the processes find each other: served by rank 0, unless the cluster serves one."""
        is_host = environment.node_rank == 0 and environment.local_rank == 0 and not environment.hosts_store
        if not is_host or (isinstance(environment, LocalEnvironment) and environment.is_launched):
            return connect_store(environment.main_address, environment.main_port, timeout=self.timeout)
        store = host_store(environment.main_address, environment.main_port, timeout=self.timeout)
        if isinstance(environment, LocalEnvironment):
            environment.main_port = store.port
        return store

    @property
    def board(self) -> Board | None:
        """Where the processes of the run leave notes for each other; ``None`` outside of the process group."""
        return None if self._group is None else self._group.board

    @property
    def saving_is_collective(self) -> bool:
        """Whether the state is divided: unless each process has all of it, and process 0 alone writes it."""
        own = ("module_state", "optimizer_state", "save_checkpoint")
        is_replicated = all(getattr(type(self), name) is getattr(ProcessGroupStrategy, name) for name in own)
        return self.world_size > 1 and (self.checkpoint_io.is_collective or not is_replicated)

    def init_dist_connection(self) -> None:
        """Join the process group of the run. A documented extension point for subclasses that connect in another way.

        A default process group that this process is already in is used, if it fits, and not destroyed.

        Raises:
            ConfigurationError: There is a default process group that does not fit the Plan.
            LaunchError: Other processes did not join in time.
            BackendError: ``torch.distributed`` cannot form a group with the Plan's backend.
        """
        backend = self.plan.process_group_backend
        assert backend is not None  # uses_process_group is True
        if process_group.has_foreign_group():
            self._group = process_group.adopt(
                self.cluster_environment.main_address,
                backend=backend,
                rank=self.global_rank,
                world_size=self.world_size,
                timeout=self.timeout,
                device=self.root_device,
            )
            return
        if self._store is None:
            self._store = self._open_store(self.cluster_environment)
        self._group = process_group.join(
            self._store,
            backend=backend,
            rank=self.global_rank,
            world_size=self.world_size,
            timeout=self.timeout,
            device=self.process_group_device(),
            check=self._script.check if self._script is not None else None,
        )

    def process_group_device(self) -> torch.device | None:
        """The device that is passed to ``init_process_group``; ``None`` to pass none."""
        return self.root_device

    def teardown(self, failed: bool = False) -> None:
        """Leave the process group; see :meth:`Strategy.teardown`.

        Raises:
            LaunchError: Another process has failed, which may be the reason why this one fails.
        """
        failing = True
        try:
            # The failure of a process that this one started may be the cause, and may show a moment later.
            if failed and self._script is not None:
                self._script.check(settle=FAILED_TOO_SECONDS)
            end_saving(self, self.board, failed)
            failing = failed
        finally:
            group, self._group = self._group, None
            if group is not None:
                group.leave(failed=failing)
            super().teardown(failing)

    def end_at_leave(self, end: Callable[[bool], None]) -> None:
        """Call ``end(failed)`` when this process begins to leave the process group, at the latest when its script ends.

        For threads that communicate: they must end before the interpreter does, which they would abort.
        Nothing is called if there is no process group.
        """
        if self._group is not None:
            self._group.end_at_leave(end)

    def release_at_leave(self, release: Callable[[], None]) -> None:
        """Call ``release`` when all processes have left the process group, before it is destroyed.

        For objects that hold the group, such as reducers of gradients: its threads and connections stay as long as
        something holds it. Nothing is called if there is no process group.
        """
        if self._group is not None:
            self._group.release_at_leave(release)

    # -- collectives ---------------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        """Called right before a collective."""
        if self._group is not None:
            self._group.calls.begin(name)

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """In place, by the process group."""
        reduced = as_reduced(tensor)
        self._begin("all_reduce")
        dist.all_reduce(reduced, op=REDUCTIONS[reduction].operation)
        return reduced.to(tensor.dtype)

    def all_gather_list(self, tensor: Tensor) -> list[Tensor]:
        """By the process group."""
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        self._begin("all_gather_list")
        dist.all_gather([as_sent(part) for part in parts], as_sent(tensor))
        return parts

    def broadcast(self, obj: T, src: int = 0) -> T:
        """The object of the process with rank ``src``."""
        own = pickled(obj) if self.global_rank == src else None
        self._begin("broadcast")
        sent: T = broadcast_pickled(own, src)
        return sent if own is None else obj

    def broadcast_tensor(self, tensor: Tensor, src: int = 0) -> None:
        """By the process group; see the base class."""
        dense = sendable(tensor)
        self._begin("broadcast_tensor")
        dist.broadcast(as_sent(dense), src)
        if dense is not tensor:
            tensor.detach().copy_(dense)

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process has called this."""
        self._begin("barrier")
        dist.barrier()

    def all_gather_object(self, obj: T) -> list[T]:
        """By rank."""
        own = pickled(obj)
        self._begin("all_gather_object")
        return gather_pickled(own)
