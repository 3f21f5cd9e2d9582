"""Strategies of several processes that meet in a ``torch.distributed`` process group."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from core.accelerators.base import Accelerator
from core.checkpoints.base import CheckpointIO
from core.environments.base import ClusterEnvironment
from core.environments.local import LAUNCHED, LocalEnvironment
from core.errors import CheckpointError, ConfigurationError, WrongTypeError, quoted
from core.precisions.base import Precision
from core.random import get_host_rng_state, set_host_rng_state
from core.strategies import process_group
from core.strategies.base import Strategy
from core.strategies.launchers import FunctionLauncher, ScriptLauncher
from core.strategies.launchers.base import SETTLE_SECONDS

__all__ = ["ParallelStrategy"]

T = TypeVar("T")

START_METHODS = ("script", "spawn", "fork")

_OPERATIONS = {
    "mean": dist.ReduceOp.SUM,
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


_script_stores: list[Store] = []
"""Keeps open what a script's processes meet in: later runs of the script, with strategies of their own, do so too."""


class ParallelStrategy(Strategy):
    """Several processes, one device each, that meet in a ``torch.distributed`` process group.

    Args:
        accelerator: The hardware, as an object or by name.
        cluster_environment: Who this process is, as an object or by name.
        checkpoint_io: How checkpoints are written, as an object or by name.
        precision_plugin: The dtype policy, as an object or by name.
        process_group_backend: The ``torch.distributed`` backend; the accelerator's own where none is named.
        timeout: How long a collective may wait for the other processes.
        start_method: How processes are started that nobody else started: ``"script"`` starts this script once more for
            each, ``"spawn"`` and ``"fork"`` run a function in each.
    """

    uses_process_group: ClassVar[bool] = True

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        cluster_environment: ClusterEnvironment | str | None = None,
        checkpoint_io: CheckpointIO | str | None = None,
        precision_plugin: Precision | str | None = None,
        *,
        process_group_backend: str | None = None,
        timeout: timedelta = timedelta(minutes=30),
        start_method: str = "script",
    ) -> None:
        super().__init__(accelerator, cluster_environment, checkpoint_io, precision_plugin)
        if start_method not in START_METHODS:
            raise ConfigurationError(f"start_method={start_method!r}: unknown. Valid: {quoted(START_METHODS)}.")
        if not isinstance(timeout, timedelta):
            raise WrongTypeError(f"timeout={timeout!r}. Valid: a datetime.timedelta, such as timedelta(minutes=30).")
        self.launcher = start_method
        self.process_group_backend = process_group_backend
        self.timeout = timeout
        self._group: process_group.JoinedGroup | None = None
        self._store: Store | None = None
        self._script: ScriptLauncher | None = None
        self._threads_before: int | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    def launch(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function`` in every process of the run; see :meth:`Strategy.launch`."""
        environment = self._environment_now()
        if environment.creates_processes_externally or self.local_processes == 1:
            return function(*args, **kwargs)
        if not isinstance(environment, LocalEnvironment):
            raise ConfigurationError(
                f"cluster_environment={environment.name!r}: it starts no processes, and strategy {self.name!r} can "
                "start them only where the environment is 'local'."
            )
        if self.launcher != "script":
            return self._run_function(environment, function, args, kwargs)
        if self._script is None:
            self._script = self._start_script(environment)
        return function(*args, **kwargs)

    def _environment_now(self) -> ClusterEnvironment:
        """The environment, anew where an earlier run of this script has started its processes since it was connected.

        Those serve this run as well, and this process is local rank 0 among them.
        """
        environment = self.cluster_environment
        if self.launcher == "script" and LAUNCHED in os.environ and isinstance(environment, LocalEnvironment):
            self.cluster_environment = LocalEnvironment(os.environ)
            self.cluster_environment.connect(self.local_processes, environment.num_nodes)
        return self.cluster_environment

    def _start_script(self, environment: LocalEnvironment) -> ScriptLauncher:
        """Host the store, and start this script once more for each further process of this machine."""
        self._store = self._open_store(environment)
        _script_stores.append(self._store)
        launcher = ScriptLauncher(self.local_processes, partial(environment.launch_variables, plan=self._plan))
        launcher.start()
        # From now on this process is local rank 0 of that world, for what the script does later as well.
        os.environ.update(environment.launch_variables(0, self._plan))
        return launcher

    def _run_function(self, environment: LocalEnvironment, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        """Host the store, and call ``function`` in a started process for each device."""
        store = self._open_store(environment)  # open as long as this variable lives
        launcher = FunctionLauncher(
            self.local_processes,
            partial(environment.launch_variables, plan=self._plan),
            start_method="fork" if self.launcher == "fork" else "spawn",
            fork_unsafe_reason=self.accelerator.fork_unsafe_reason() if self.launcher == "fork" else None,
        )
        result: T = launcher.launch(_in_worker, self, get_host_rng_state(), function, args, kwargs)
        del store
        return result

    def _open_store(self, environment: ClusterEnvironment) -> Store:
        """Where the processes find each other: served by rank 0's machine, unless the cluster serves one itself."""
        is_host = environment.node_rank == 0 and environment.local_rank == 0 and not environment.hosts_store
        if not is_host or (isinstance(environment, LocalEnvironment) and environment.is_launched):
            return process_group.connect_store(environment.main_address, environment.main_port, timeout=self.timeout)
        store = process_group.host_store(environment.main_address, environment.main_port, timeout=self.timeout)
        if isinstance(environment, LocalEnvironment):
            environment.main_port = store.port
        return store

    def setup_environment(self) -> None:
        """This process's device, then the process group."""
        super().setup_environment()
        if self.local_processes > 1 and "OMP_NUM_THREADS" not in self.cluster_environment.environ:
            # As torchrun does: processes that share a machine do not each take all of its cores.
            self._threads_before = torch.get_num_threads()
            torch.set_num_threads(1)
        self.init_dist_connection()

    def init_dist_connection(self) -> None:
        """Join the process group of the run; a documented seam for subclasses that meet in another way.

        Raises:
            LaunchError: The others did not come.
            BackendError: ``torch.distributed`` cannot form a group with that backend.
        """
        environment = self.cluster_environment
        if self._store is None:
            self._store = self._open_store(environment)
        self._group = process_group.join(
            self._store,
            backend=self.process_group_backend or self.accelerator.process_group_backend(self.root_device),
            rank=environment.global_rank,
            world_size=environment.world_size,
            timeout=self.timeout,
            device=self.process_group_device(),
            check=self._script.check if self._script is not None else None,
        )

    def process_group_device(self) -> torch.device | None:
        """The device that the process group is told to connect to; ``None`` where its backend is not to be told."""
        return self.root_device

    def teardown(self, failed: bool = False) -> None:
        """Leave the process group; see :meth:`Strategy.teardown`.

        Raises:
            LaunchError: Another process has failed, which may well be why this one does.
        """
        try:
            if failed and self._script is not None:
                self._script.check(settle=SETTLE_SECONDS)
        finally:
            group, self._group = self._group, None
            if group is not None:
                group.leave(failed=failed)
            if self._threads_before is not None:
                torch.set_num_threads(self._threads_before)
                self._threads_before = None
            super().teardown(failed)

    # -- collectives ---------------------------------------------------------------------------------------------

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """Combined over all processes; see :meth:`Strategy.reduce`. A mean of whole numbers is a float32 tensor."""
        self.check_reduction(reduction)
        is_mean = reduction == "mean"
        result = tensor.detach().to(self.root_device)
        result = result.to(torch.float32) if is_mean and not _is_fractional(result) else result.clone()
        result = result.contiguous()
        dist.all_reduce(result, op=_OPERATIONS[reduction])
        return result.div_(self.world_size) if is_mean else result

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Stacked by rank; see :meth:`Strategy.all_gather`."""
        own = tensor.detach().to(self.root_device).contiguous()
        self._check_alike(own)
        return torch.stack(self._all_gather_list(own))

    def broadcast(self, obj: T, src: int = 0) -> T:
        """As process ``src`` has it."""
        holder = [obj]
        dist.broadcast_object_list(holder, src)
        return holder[0]

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process is here."""
        del name
        dist.barrier()

    def all_gather_object(self, obj: T) -> list[T]:
        """By rank."""
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, obj)
        return gathered

    def _all_gather_list(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return parts

    def _check_alike(self, tensor: Tensor) -> None:
        """Refuse tensors that differ in shape or dtype: the collective itself would hang or mix up bytes."""
        facts = f"{tuple(tensor.shape)}, {tensor.dtype}"
        digest = torch.tensor([zlib.crc32(facts.encode())], device=tensor.device)
        if len({int(part) for part in self._all_gather_list(digest)}) > 1:
            by_rank = "; ".join(f"rank {rank}: {fact}" for rank, fact in enumerate(self.all_gather_object(facts)))
            raise ConfigurationError(
                f"tensor: its shape and dtype differ between processes ({by_rank}). Valid: the same on each, padded "
                "where need be."
            )

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Rank 0 writes, or each process its part; an error there is raised in every process."""
        if self.checkpoint_io.is_collective:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        error: Exception | None = None
        if self.is_global_zero:
            try:
                super().save_checkpoint(checkpoint, path, storage_options)
            except Exception as caught:  # noqa: BLE001  a CheckpointIO of the user's may raise anything
                error = caught
        said = self.broadcast(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        if said is not None:
            raise CheckpointError(f"path={os.fspath(path)!r}: rank 0 could not write the checkpoint: {said}")


def _in_worker(
    environ: Mapping[str, str],
    strategy: ParallelStrategy,
    rng_state: dict[str, Any],
    function: Callable[..., T],
    args: Any,
    kwargs: Any,
) -> T:
    """What a started process runs: it draws as the one that asked would, and the strategy learns who it is there."""
    set_host_rng_state(rng_state)
    strategy.cluster_environment = type(strategy.cluster_environment)(environ)
    return function(*args, **kwargs)


def _is_fractional(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
