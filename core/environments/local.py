"""This machine alone, or a few machines on each of which the user starts the script once."""

from __future__ import annotations

import os
from collections.abc import Mapping

from core.environments import detect
from core.environments.base import ClusterEnvironment
from core.environments.detect import LAUNCHED, TORCHRUN_VARIABLES
from core.environments.variables import LARGEST_PORT, whole_number
from core.errors import ConfigurationError

__all__ = ["LAUNCHED", "LocalEnvironment"]

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
"""What says that a process is the only one, where it is said at all."""


class LocalEnvironment(ClusterEnvironment):
    """Processes started by the strategy's own launcher.

    The process that the user started is local rank 0; the launcher gives each further one the same variables that
    torchrun would. For more than one machine, start the script once on each, with ``NODE_RANK``, ``MASTER_ADDR`` and
    ``MASTER_PORT`` set.
    """

    name = "local"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(environ)
        self._processes_per_node = 1
        self._num_nodes = 1
        self._port = whole_number(self.environ, "MASTER_PORT", 0) if self.is_launched else 0

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Always true: a process that no cluster started is on its own."""
        return detect.local(os.environ if environ is None else environ)

    @property
    def is_launched(self) -> bool:
        """Whether this process was started by a launcher of ours, beside the one that the user started."""
        return LAUNCHED in self.environ

    @property
    def creates_processes_externally(self) -> bool:
        """Whether this process was itself started by a launcher, so that it must start none."""
        return self.is_launched

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR`` where there are several machines or a launcher set it, else the loopback address."""
        if self.is_launched or self._num_nodes > 1:
            return self.environ["MASTER_ADDR"]
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """``MASTER_PORT`` likewise, else the port that the launcher's store was given; 0 before there is one."""
        return self._port

    @main_port.setter
    def main_port(self, port: int) -> None:
        self._port = port

    @property
    def world_size(self) -> int:
        """Machines times processes on each."""
        return self.local_world_size * self.num_nodes

    @property
    def num_nodes(self) -> int:
        """As the run asked for."""
        if self.is_launched:
            return max(1, whole_number(self.environ, "WORLD_SIZE") // self.local_world_size)
        return self._num_nodes

    @property
    def local_world_size(self) -> int:
        """As the run asked for."""
        return whole_number(self.environ, "LOCAL_WORLD_SIZE") if self.is_launched else self._processes_per_node

    @property
    def global_rank(self) -> int:
        """Counted through the machines."""
        return self.node_rank * self.local_world_size + self.local_rank

    @property
    def local_rank(self) -> int:
        """0 in the process that the user started."""
        return whole_number(self.environ, "LOCAL_RANK") if self.is_launched else 0

    @property
    def node_rank(self) -> int:
        """``NODE_RANK``, else 0."""
        return whole_number(self.environ, "NODE_RANK", 0)

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        """Take the numbers of the run; see :meth:`validate_settings`."""
        super().connect(processes_per_node, num_nodes)
        self._processes_per_node = processes_per_node
        self._num_nodes = num_nodes
        if num_nodes > 1:
            self._port = self._given_port()

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Refuse ranks that somebody else gave, another size in launched processes, and machines that cannot meet.

        Raises:
            ConfigurationError: As said.
        """
        if self.is_launched:
            self._check_same_size(processes_per_node, num_nodes)
            return
        self._check_alone()
        missing = [name for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT") if not self.environ.get(name)]
        if num_nodes > 1 and missing:
            raise ConfigurationError(
                f"num_nodes={num_nodes}: environment variable(s) {', '.join(missing)} not set. Valid: torchrun on each "
                "machine, or the script on each with NODE_RANK, MASTER_ADDR and MASTER_PORT."
            )
        if self.node_rank >= num_nodes:
            raise ConfigurationError(
                f"environment variable NODE_RANK: given {self.node_rank}, but num_nodes={num_nodes}. Valid: a "
                "NODE_RANK below num_nodes, and num_nodes= as many as there are machines."
            )
        if num_nodes > 1:
            self._given_port()

    def _given_port(self) -> int:
        return whole_number(self.environ, "MASTER_PORT", low=1, high=LARGEST_PORT)

    def _check_alone(self) -> None:
        """Two processes that both took themselves for the only one would overwrite each other's work."""
        names = [name for name, alone in _ALONE.items() if self.environ.get(name, alone) != alone]
        if not names:
            return
        given = ", ".join(f"{name}={self.environ[name]}" for name in names)
        missing = ", ".join(name for name in TORCHRUN_VARIABLES if name not in self.environ)
        raise ConfigurationError(
            f"environment variables {given}: they say that this is one of several processes, but cluster environment "
            f"{self.name!r} starts its own. Valid: the environment of what started it, as 'torchelastic', which needs "
            f"{', '.join(TORCHRUN_VARIABLES)} (not set: {missing or 'none'}); or none of RANK, WORLD_SIZE, LOCAL_RANK."
        )

    def _check_same_size(self, processes_per_node: int, num_nodes: int) -> None:
        if (processes_per_node, num_nodes) != (self.local_world_size, self.num_nodes):
            raise ConfigurationError(
                f"devices, num_nodes: {processes_per_node} process(es) on {num_nodes} machine(s) asked for in a "
                f"process that an earlier run of this script made one of {self.local_world_size} on {self.num_nodes}. "
                "Valid: runs of one size in a script that starts itself again; for several sizes strategy='ddp_spawn', "
                "or a script each."
            )

    def launch_variables(self, local_rank: int, plan: str) -> dict[str, str]:
        """The variables that make a process local rank ``local_rank`` of this run.

        Args:
            local_rank: From 0.
            plan: The Plan as JSON.
        """
        return {
            LAUNCHED: plan,
            "RANK": str(self.node_rank * self.local_world_size + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "NODE_RANK": str(self.node_rank),
            "GROUP_RANK": str(self.node_rank),
            "MASTER_ADDR": self.main_address,
            "MASTER_PORT": str(self.main_port),
        }
