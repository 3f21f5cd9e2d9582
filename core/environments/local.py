"""This machine: processes that a strategy starts, and ranks, which belong to the process that got them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import zlib
from collections.abc import Iterable, Mapping, MutableMapping

from ..errors import ConfigurationError
from .base import LARGEST_PORT, LAUNCHED, TORCHRUN_VARIABLES, ClusterEnvironment, whole_number

__all__ = [
    "GLOO_INTERFACE",
    "LAUNCHED",
    "LAUNCH_VARIABLES",
    "OWNER",
    "LocalEnvironment",
    "claim_ranks",
    "loopback_interface",
    "own_environ",
    "ranks_environ",
]

logger = logging.getLogger(__name__)


GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable that names gloo's network interface. By default it is the interface of the host name's address."""

LAUNCH_VARIABLES = (
    *(LAUNCHED, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""The variables that belong to one of the processes that a strategy's launcher has started."""

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
"""Values that a single process may have; the variables may also be unset."""


_SIZES = (
    *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE", "PALS_SIZE"),
    *("MV2_COMM_WORLD_SIZE", "PMIX_SIZE"),
)
"""How many processes a launcher has started; not all of these launchers have a cluster environment."""
_RANKS = ("PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK")
"""A process with another rank than 0 is not alone."""


class LocalEnvironment(ClusterEnvironment):
    """Processes that the strategy's launcher starts.

    The process that the user started is local rank 0. The launcher sets the same variables for the others as torchrun
    does. For several machines, start the script once on each, with ``NODE_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT``
    set.
    """

    name = "local"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(environ)
        self._processes_per_node = 1
        self._num_nodes = 1
        self._port = whole_number(self.environ, "MASTER_PORT", 0) if self.is_launched else 0

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """True, unless a launcher has started this process as one of several: then each would train by itself.

        Raises:
            ConfigurationError: It has, by a variable that the error names.
        """
        environ = os.environ if environ is None else environ
        if LAUNCHED in environ:
            return True
        named = [(name, whole_number(environ, name) > 1) for name in _SIZES if name in environ]
        named += [(name, whole_number(environ, name) > 0) for name in _RANKS if name in environ]
        for name, is_one_of_several in named:
            if is_one_of_several:
                raise ConfigurationError(
                    f"environment variable {name} is {environ[name]!r}: a launcher has started this process as one of "
                    "several, and each would train by itself. Set cluster_environment to that launcher's, set RANK, "
                    "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process, or set "
                    "cluster_environment='local' if each is a separate run"
                )
        return True

    @property
    def is_launched(self) -> bool:
        """Whether a strategy's launcher has started this process, or others for which this process is local rank 0."""
        return LAUNCHED in self.environ

    @property
    def creates_processes_externally(self) -> bool:
        """Whether a strategy's launcher has already started the processes."""
        return self.is_launched

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR`` on several machines and in started processes, otherwise the loopback address."""
        if self.is_launched or self._num_nodes > 1:
            address = self.environ.get("MASTER_ADDR", "")
            if not address:
                raise ConfigurationError(
                    "environment variable MASTER_ADDR is not set. It must be the host name or IP address of rank 0's "
                    "machine."
                )
            return address
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """``MASTER_PORT`` likewise, otherwise the port of the launcher's store; 0 before the store is open."""
        return self._port

    @main_port.setter
    def main_port(self, port: int) -> None:
        self._port = port

    @property
    def world_size(self) -> int:
        """Number of processes on all machines."""
        return self.local_world_size * self.num_nodes

    @property
    def num_nodes(self) -> int:
        """Number of machines, as requested for the run."""
        if self.is_launched:
            return max(1, whole_number(self.environ, "WORLD_SIZE") // self.local_world_size)
        return self._num_nodes

    @property
    def local_world_size(self) -> int:
        """Number of processes on this machine, as requested for the run."""
        return whole_number(self.environ, "LOCAL_WORLD_SIZE", low=1) if self.is_launched else self._processes_per_node

    @property
    def global_rank(self) -> int:
        """Rank of this process among all processes; consecutive on each machine."""
        return self.node_rank * self.local_world_size + self.local_rank

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine; 0 in the process that the user started."""
        return whole_number(self.environ, "LOCAL_RANK") if self.is_launched else 0

    @property
    def node_rank(self) -> int:
        """``NODE_RANK``; 0 if it is not set."""
        return whole_number(self.environ, "NODE_RANK", 0)

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        """Receive the numbers of the run, and check them; see :meth:`validate_settings`."""
        super().connect(processes_per_node, num_nodes)
        self._processes_per_node = processes_per_node
        self._num_nodes = num_nodes
        if num_nodes > 1:
            self._port = self._requested_port()

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject ranks that another launcher has set, and settings with which the processes cannot meet.

        Raises:
            ConfigurationError: The variables say that another launcher started this process; an earlier run of this
                script has started another number of processes; or the variables for several machines are missing.
        """
        if self.is_launched:
            self._check_same_size(processes_per_node, num_nodes)
            return
        self._check_alone()
        missing = [name for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT") if not self.environ.get(name)]
        if num_nodes > 1 and missing:
            raise ConfigurationError(
                f"num_nodes={num_nodes} needs the environment variables NODE_RANK, MASTER_ADDR and MASTER_PORT (not "
                f"set: {', '.join(missing)}). Set them on each machine, or use torchrun on each machine."
            )
        if self.node_rank >= num_nodes:
            raise ConfigurationError(
                f"environment variable NODE_RANK is {self.node_rank}, but num_nodes={num_nodes}. Set num_nodes to the "
                "number of machines, and NODE_RANK to an integer from 0 to num_nodes - 1."
            )
        if num_nodes > 1:
            self._requested_port()

    def _requested_port(self) -> int:
        return whole_number(self.environ, "MASTER_PORT", low=1, high=LARGEST_PORT)

    def _check_alone(self) -> None:
        """Two processes that both believe to be the only one would overwrite each other's files."""
        names = [name for name, alone in _ALONE.items() if self.environ.get(name, alone) != alone]
        if not names:
            return
        given = ", ".join(f"{name}={self.environ[name][:100]}" for name in names)
        missing = ", ".join(name for name in TORCHRUN_VARIABLES if name not in self.environ)
        raise ConfigurationError(
            f"environment variables {given} say that another launcher started this process, but "
            f"cluster_environment={self.name!r} starts processes itself. Set cluster_environment to that launcher's: "
            f"'torchelastic' needs {', '.join(TORCHRUN_VARIABLES)} (not set: {missing or 'none'}). Or unset RANK, "
            "WORLD_SIZE and LOCAL_RANK."
        )

    def _check_same_size(self, processes_per_node: int, num_nodes: int) -> None:
        if (processes_per_node, num_nodes) != (self.local_world_size, self.num_nodes):
            raise ConfigurationError(
                f"devices and num_nodes ask for {processes_per_node} process(es) on each of {num_nodes} machine(s), "
                f"but {self.local_world_size} on each of {self.num_nodes} run: process 0 of this script, or an earlier "
                "run in it, has asked for these. Use the same numbers in each process and for all runs of the script, "
                "a strategy that runs a function in processes (start_method='spawn', such as 'ddp_spawn'), or another "
                "script."
            )

    def launch_variables(self, local_rank: int, plan: str) -> dict[str, str]:
        """The environment variables for the process of local rank ``local_rank``.

        Args:
            local_rank: Rank of the process on this machine.
            plan: The part of the Plan that the process needs, as JSON.
        """
        variables = {
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
        if self.num_nodes == 1 and GLOO_INTERFACE not in self.environ and (loopback := loopback_interface()):
            variables[GLOO_INTERFACE] = loopback
        return variables


def loopback_interface() -> str:
    """The name of the loopback interface; empty where it has another than on Linux and BSD."""
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError:  # this process may not see the interfaces
        return ""
    return next((name for name in ("lo", "lo0") if name in names), "")


OWNER = "CORE_RANKS_OF"
"""The process to which the ranks belong, their checksum, and the names of the variables, divided by slashes."""


def own_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A copy of this process's environment variables, without ranks that belong to the process that started it."""
    owner, names = _owner(environ)
    if owner in (None, os.getpid()):
        return dict(environ)
    logger.warning(
        "this process was started by a process of a run (process %s), whose ranks it inherited. They are ignored, "
        "and this process starts a separate run. To use the inherited ranks, unset %s.",
        owner,
        OWNER,
    )
    return _without(names, environ)


def ranks_environ() -> dict[str, str]:
    """Like :func:`own_environ`, for what only labels or seeds: workers of multiprocessing belong to their process."""
    owner, names = _owner(os.environ)
    is_own = owner in (None, os.getpid()) or multiprocessing.parent_process() is not None
    return dict(os.environ) if is_own else _without(names, os.environ)


def claim_ranks(ranks: Iterable[str], names: Iterable[str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Note in ``environ`` that the ranks are this process's, if it has any that it has not inherited.

    Args:
        ranks: The variables of which each makes this process a rank.
        names: All variables that belong to one process, ``ranks`` included.
        environ: The environment variables of this process.
    """
    owner, noted = _owner(environ)
    is_inherited = owner not in (None, os.getpid())
    if any(name in environ and not (is_inherited and name in noted) for name in ranks):
        names = sorted({*noted, *names})
        environ[OWNER] = f"{os.getpid()}/{_checksum(names, environ)}/{','.join(names)}"


def _owner(environ: Mapping[str, str]) -> tuple[int | None, list[str]]:
    """The process that has noted the ranks and the names of the variables; ``None`` if they have changed since."""
    process, checksum, names = (*environ.get(OWNER, "").split("/", 2), "", "")[:3]
    noted = names.split(",") if names else []
    is_theirs = process.isascii() and process.isdecimal() and checksum == _checksum(noted, environ)
    return (int(process) if is_theirs else None), noted


def _checksum(names: Iterable[str], environ: Mapping[str, str]) -> str:
    found = "\n".join(f"{name}={environ[name]}" for name in names if name in environ)
    return f"{zlib.crc32(found.encode(errors='surrogateescape')):08x}"


def _without(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in {*names, OWNER}}
