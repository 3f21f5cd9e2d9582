"""The ClusterEnvironment: tells a process its ranks, the world size, and the main address and port."""

from __future__ import annotations

import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from attrs import frozen

from ..errors import ConfigurationError
from ..utilities.renamed import Renaming


class ClusterEnvironment(Renaming, ABC):
    """Tells a process its ranks and the world size, from the environment variables that the cluster has set.

    Args:
        environ: The environment variables; by default a copy of this process's. They are read once.
    """

    name: str = ""
    """The name that users request it by."""
    starts_processes: ClassVar[bool] = False
    """Whether it starts the processes of a run itself, wherever the cluster has room: see :meth:`run_function`."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = dict(os.environ if environ is None else environ)

    @staticmethod
    @abstractmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether this kind of cluster started this process.

        Raises:
            ConfigurationError: Another launcher has started this process as one of several, and this environment would
                treat it as the only one.
        """

    @property
    @abstractmethod
    def creates_processes_externally(self) -> bool:
        """Whether the cluster starts all processes, so that the strategy must start none."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """Host name or IP address of the machine of rank 0."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """Port on that machine at which the processes meet, the same in each of them."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of processes on all machines."""

    @property
    @abstractmethod
    def local_world_size(self) -> int:
        """Number of processes on this machine."""

    @property
    @abstractmethod
    def global_rank(self) -> int:
        """Rank of this process among all processes."""

    @property
    @abstractmethod
    def local_rank(self) -> int:
        """Rank of this process on its machine."""

    @property
    @abstractmethod
    def node_rank(self) -> int:
        """Rank of this machine."""

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return max(1, self.world_size // max(1, self.local_world_size))

    @property
    def hosts_store(self) -> bool:
        """Whether the cluster serves the store at ``main_address:main_port``; otherwise rank 0 serves it."""
        return False

    @property
    def leaves_orphans(self) -> bool:
        """Whether the process that started this one does not see to it that this one ends if it is killed."""
        return False

    def requeue_command(self) -> list[str]:
        """The command that puts the job back into the scheduler's queue, to start again; empty if there is none."""
        if self.environ.get("SLURM_ARRAY_JOB_ID") and self.environ.get("SLURM_ARRAY_TASK_ID"):
            job = f"{self.environ['SLURM_ARRAY_JOB_ID']}_{self.environ['SLURM_ARRAY_TASK_ID']}"
        else:
            job = self.environ.get("SLURM_JOB_ID", "")
        return ["scontrol", "requeue", job] if job else []

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        """Receive the numbers of the run that is about to start, and check them.

        Args:
            processes_per_node: Number of processes on each machine.
            num_nodes: Number of machines.

        Raises:
            ConfigurationError: See :meth:`validate_settings`.
        """
        self.validate_settings(processes_per_node, num_nodes)

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject numbers that contradict what the cluster has started.

        Args:
            processes_per_node: Requested number of processes on each machine.
            num_nodes: Requested number of machines.

        Raises:
            ConfigurationError: The cluster has started another number of processes or machines.
        """

    @property
    def restarted_since(self) -> float | None:
        """When the run was first started, in seconds since the epoch, if it was started again after a failure.

        ``None`` in a first start. A fit then goes on from the newest checkpoint that was committed since that time.
        """
        return None

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
        """Start the processes of the run, and call ``function(environ, *args, **kwargs)`` in each.

        Only called if :attr:`starts_processes`, in the process that the user started, after :meth:`connect`.

        Args:
            function: Its first argument is the process's environment variables, which tell its ranks to an object of
                this class.
            args: Further arguments.
            kwargs: Further keyword arguments.
            variables: Environment variables that each process needs in addition to its ranks.
            accelerator: Name of the accelerator that each process needs one device of.
            strategy: Name of the strategy that the user asked for, for error messages.

        Returns:
            What the function returned in rank 0.

        Raises:
            LaunchError: A process could not be started, or failed.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no processes")

    def teardown(self) -> None:  # most have nothing to undo
        """Undo what this environment has set up."""


@frozen
class RankVariables:
    """The names of the environment variables that hold a process's ranks.

    Attributes:
        rank: Rank of this process among all processes.
        size: Number of processes on all machines.
        local_rank: Rank of this process on its machine.
        local_size: Number of processes on this machine.
        node_rank: Rank of this machine; ``None`` if the launcher does not set it.
    """

    rank: str
    size: str
    local_rank: str
    local_size: str
    node_rank: str | None = None


class LaunchedEnvironment(ClusterEnvironment):
    """A ClusterEnvironment whose launcher tells every process its ranks, with equally many processes on each machine.

    A subclass sets :attr:`variables` and defines ``detect`` and :meth:`command`. It overrides the properties that the
    launcher tells in another way, such as ``main_address`` where there is no ``MASTER_ADDR``.
    """

    variables: RankVariables
    """The names of the environment variables."""
    advice: str = ""
    """Advice for variables that are set by hand, for error messages."""
    ranks_count_through: bool = True
    """Whether ranks are consecutive on each machine, machine after machine."""

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher has started all processes."""
        return True

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``."""
        address = self.environ.get("MASTER_ADDR", "")
        if not address:
            raise ConfigurationError(
                f"environment variable MASTER_ADDR is {self.environ.get('MASTER_ADDR')!r}. It must be the host name or "
                "IP address of rank 0's machine."
            )
        return address

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``."""
        return whole_number(self.environ, "MASTER_PORT", low=1, high=LARGEST_PORT)

    @property
    def world_size(self) -> int:
        """Number of processes on all machines."""
        return whole_number(self.environ, self.variables.size, low=1)

    @property
    def local_world_size(self) -> int:
        """Number of processes on this machine."""
        return whole_number(self.environ, self.variables.local_size, low=1)

    @property
    def global_rank(self) -> int:
        """Rank of this process among all processes."""
        if self.variables.rank not in self.environ:
            raise ConfigurationError(
                f"cluster_environment={self.name!r}: environment variable {self.variables.rank} is not set: this "
                "launcher did not start this process. Start it with the launcher, or leave out cluster_environment."
            )
        return whole_number(self.environ, self.variables.rank)

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine."""
        return whole_number(self.environ, self.variables.local_rank)

    @property
    def node_rank(self) -> int:
        """Rank of this machine; computed from the ranks if the launcher does not set it."""
        counted = self.global_rank // self.local_world_size
        variable = self.variables.node_rank
        return counted if variable is None else whole_number(self.environ, variable, counted)

    @abstractmethod
    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """The command that starts this many processes, for error messages."""

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject a number of processes or machines other than the launcher's.

        Raises:
            ConfigurationError: The numbers differ, the variables contradict each other, or one is not an integer.
        """
        self._check_ranks()
        size, local_size = self.variables.size, self.variables.local_size
        if processes_per_node != self.local_world_size:
            raise ConfigurationError(
                f"devices asks for {processes_per_node} process(es) on this machine, but the launcher has started "
                f"{self.local_world_size} ({local_size}). Set devices={self.local_world_size} or devices='auto', or "
                f"start the script with '{self.command(processes_per_node, num_nodes)}'."
            )
        if num_nodes != self.num_nodes:
            raise ConfigurationError(
                f"num_nodes={num_nodes}, but the launcher has started processes on {self.num_nodes} machine(s) "
                f"({size}={self.world_size}, {local_size}={self.local_world_size}). Set num_nodes={self.num_nodes} or "
                "num_nodes='auto'."
            )

    def _check_ranks(self) -> None:
        rank, size = self.global_rank, self.world_size
        local_rank, local_size, node_rank = self.local_rank, self.local_world_size, self.node_rank
        fault = ""
        if rank >= size or local_rank >= local_size:
            fault = "a rank must be smaller than its world size"
        elif size % local_size:
            fault = "every machine must have the same number of processes"
        elif self.ranks_count_through and rank != node_rank * local_size + local_rank:
            fault = "ranks must be consecutive on each machine"
        if fault:
            names = self.variables
            advice = f"; {self.advice}" if self.advice else ""
            raise ConfigurationError(
                f"the environment variables contradict each other: {fault}, but {names.rank}={rank}, "
                f"{names.size}={size}, {names.local_rank}={local_rank}, {names.local_size}={local_size}, "
                f"{names.node_rank or 'node rank'}={node_rank}. "
                f"Start the script with '{self.command(local_size, self.num_nodes)}'{advice}."
            )


LAUNCHED = "CORE_LAUNCHED_PLAN"
"""Set by a strategy's launcher in the processes that it starts: the Plan that they run, as JSON."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets. Whoever starts processes by hand must set them too."""

LARGEST_PORT = 65535
LARGEST_ID = 10**18
"""Of a job: schedulers that are joined in a federation count beyond ten digits."""
_LARGEST_COUNT = 999_999_999

_DIGITS = re.compile(r"\d{1,18}", re.ASCII)


def whole_number(
    environ: Mapping[str, str], variable: str, default: int | None = None, *, low: int = 0, high: int | None = None
) -> int:
    """The value of ``variable`` as an integer.

    Args:
        environ: The environment variables.
        variable: The variable's name.
        default: Returned if the variable is not set.
        low: The smallest valid integer.
        high: The largest valid integer; ``None`` for that of a count.

    Raises:
        ConfigurationError: The variable is not set and there is no default, or it is not an integer in this range.
    """
    text = environ.get(variable)
    if text is None and default is not None:
        return default
    number = int(text) if text is not None and _DIGITS.fullmatch(text) else -1
    if not low <= number <= (_LARGEST_COUNT if high is None else high):
        given = "is not set" if text is None else f"is {text[:100]!r}"
        valid = f"≥ {low}" if high is None else f"from {low} to {high}"
        raise ConfigurationError(f"environment variable {variable} {given}. It must be an integer {valid}.")
    return number


_FIRST_PORT, _PORTS = 20000, 12000
"""The range of ports, below those that Linux uses for outgoing connections."""


def port_of(job: int | str) -> int:
    """The port that follows from the number or the name of a job: another job has another one, nearly always."""
    number = job if isinstance(job, int) else zlib.crc32(os.fsencode(job))
    return _FIRST_PORT + number % _PORTS
