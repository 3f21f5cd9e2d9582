"""Cluster environment ``ray``: Ray starts the processes on its nodes, or Ray Train has started them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from torch_hal.environments import LaunchedEnvironment, RankVariables
from torch_hal.errors import WrongTypeError
from torch_hal.hints.argument_checks import check_count
from torch_hal_ray.detect import SINCE, started
from torch_hal_ray.resources import check_resources

__all__ = ["RayEnvironment"]


class RayEnvironment(LaunchedEnvironment):
    """Ray starts the processes of the run: ``Trainer(strategy="ddp", cluster_environment="ray", num_nodes=2)``.

    The process that the user started, the driver, sends the Trainer (or the function of ``Runtime.launch``) to
    ``num_nodes`` different nodes of the cluster, with ``devices`` processes on each, and receives the results. In a
    worker of Ray Train, the ranks are Ray's.

    Args:
        environ: The environment variables; by default this process's.
        address: The cluster's address, such as ``"auto"`` or ``"HOST:6379"``; by default as in :func:`ray.init`. Only
            used if the script has not called it.
        resources_per_process: Ray's resources that each process takes; by default one CPU, and one device by the
            accelerator's resource name: ``GPU``, ``TPU``, ``HPU``, ``NPU``, or the accelerator's own name.
        max_restarts: How often all processes are started again after one has failed, on the nodes that are left.
            :meth:`core.Trainer.fit` then goes on from its last committed checkpoint, which all nodes can read.
        placement_timeout: How long to wait until the cluster has room for the processes.
        runtime_env: Ray's description of the processes' environment, such as ``{"working_dir": "."}``.

    Raises:
        ConfigurationError: A number is out of range.
        WrongTypeError: ``placement_timeout`` is not a :class:`datetime.timedelta`.
    """

    name = "ray"
    starts_processes: ClassVar[bool] = True
    variables = RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    advice = "Ray Train must place the same number of workers on each node"

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        address: str | None = None,
        resources_per_process: Mapping[str, float] | None = None,
        max_restarts: int = 0,
        placement_timeout: timedelta = timedelta(minutes=10),
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(environ)
        check_count("max_restarts", max_restarts, 0)
        if not isinstance(placement_timeout, timedelta):
            raise WrongTypeError(
                f"placement_timeout={placement_timeout!r}: must be a datetime.timedelta, such as timedelta(minutes=10)."
            )
        self.address = address
        self.resources_per_process = check_resources(resources_per_process)
        self.max_restarts = max_restarts
        self.placement_timeout = placement_timeout
        self.runtime_env = dict(runtime_env or {})
        self._processes_per_node = self._num_nodes = 1

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether Ray Train started this process. A driver asks for ``cluster_environment="ray"`` by name."""
        return started(os.environ if environ is None else environ)

    @property
    def is_started(self) -> bool:
        """Whether this process is one of several that Ray has started, and not the driver."""
        return started(self.environ)

    @property
    def creates_processes_externally(self) -> bool:
        """Whether Ray has started the processes already."""
        return self.is_started

    @property
    def hosts_store(self) -> bool:
        """Whether the store is served already, as in the processes that this environment has started."""
        return SINCE in self.environ

    @property
    def restarted_since(self) -> float | None:
        """See :attr:`core.ClusterEnvironment.restarted_since`."""
        since, _, restarts = self.environ.get(SINCE, "").partition("/")
        return float(since) if restarts not in ("", "0") else None

    # -- in the driver, which is no rank ---------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """Number of processes on all nodes."""
        return super().world_size if self.is_started else self._processes_per_node * self._num_nodes

    @property
    def local_world_size(self) -> int:
        """Number of processes on this node."""
        return super().local_world_size if self.is_started else self._processes_per_node

    @property
    def global_rank(self) -> int:
        """Rank among all processes; 0 in the driver."""
        return super().global_rank if self.is_started else 0

    @property
    def local_rank(self) -> int:
        """Rank on this node; 0 in the driver."""
        return super().local_rank if self.is_started else 0

    @property
    def node_rank(self) -> int:
        """Rank of this node; 0 in the driver."""
        return super().node_rank if self.is_started else 0

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        """Receive the numbers of the run, and check them; see :meth:`validate_settings`."""
        super().connect(processes_per_node, num_nodes)
        self._processes_per_node, self._num_nodes = processes_per_node, num_nodes

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """In a process that Ray has started, reject other numbers than Ray's; the driver may ask for any.

        Raises:
            ConfigurationError: The numbers differ, or the nodes have different numbers of processes.
        """
        if self.is_started:
            super().validate_settings(processes_per_node, num_nodes)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`core.environments.LaunchedEnvironment.command`."""
        return f"ScalingConfig(num_workers={processes_per_node * num_nodes}) of Ray's TorchTrainer"

    def run_function(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        variables: Mapping[str, str],
        accelerator: str,
        strategy: str,
    ) -> Any:
        """Place the processes and call the function in each; see :meth:`core.ClusterEnvironment.run_function`."""
        from torch_hal_ray.group import ProcessGroup

        since = time.time()
        group = ProcessGroup(self, self._processes_per_node, self._num_nodes, accelerator, strategy)
        return group.run(
            (function, args, dict(kwargs)),
            lambda attempt: {**variables, SINCE: f"{since}/{attempt}"},
            self.max_restarts,
        )
