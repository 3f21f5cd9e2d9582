"""LSF: processes that ``jsrun`` started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import ConfigurationError
from .base import LARGEST_ID, LARGEST_PORT, LAUNCHED, LaunchedEnvironment, RankVariables, port_of, whole_number


class LSFEnvironment(LaunchedEnvironment):
    """Ranks from ``JSM_NAMESPACE_*``, which ``jsrun`` sets; the job's hosts from ``LSB_MCPU_HOSTS``.

    The processes meet at ``MASTER_ADDR``, by default the first host of the job on which jsrun starts processes, and
    ``MASTER_PORT``, by default a port that follows from the number of the job. The first host of the list is left out
    if it has a single slot and others have more: there the job's script runs, not jsrun's processes.
    """

    name = "lsf"
    advice = "ranks are consecutive with jsrun's default order"
    variables = RankVariables(
        "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"
    )

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether jsrun has started several processes in a job of LSF."""
        environ = os.environ if environ is None else environ
        return LAUNCHED not in environ and "LSB_JOBID" in environ and whole_number(environ, "JSM_NAMESPACE_SIZE", 1) > 1

    @property
    def local_world_size(self) -> int:
        """``JSM_NAMESPACE_LOCAL_SIZE`` or ``OMPI_COMM_WORLD_LOCAL_SIZE``; else the world size over the job's hosts."""
        for name in (self.variables.local_size, "OMPI_COMM_WORLD_LOCAL_SIZE"):
            if name in self.environ:
                return whole_number(self.environ, name, low=1)
        hosts, size = max(1, len(self._hosts())), self.world_size
        if size % hosts:
            raise ConfigurationError(
                f"JSM_NAMESPACE_SIZE={size} is not a multiple of the job's {hosts} hosts (LSB_MCPU_HOSTS). Set "
                "JSM_NAMESPACE_LOCAL_SIZE to the number of processes on each machine."
            )
        return size // hosts

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``; otherwise the loopback address on one machine, or the first host."""
        if self.environ.get("MASTER_ADDR"):
            return self.environ["MASTER_ADDR"]
        if self.num_nodes == 1:
            return "127.0.0.1"
        hosts = self._hosts()
        if not hosts:
            raise ConfigurationError(
                "environment variable LSB_MCPU_HOSTS is not set. Set MASTER_ADDR to the host name of rank 0."
            )
        return hosts[0]

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``; otherwise a number from 20000 to 31999 that follows from the number of the job."""
        default = port_of(whole_number(self.environ, "LSB_JOBID", 0, high=LARGEST_ID) * 17)
        return whole_number(self.environ, "MASTER_PORT", default, low=1, high=LARGEST_PORT)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        return f"jsrun --nrs {num_nodes} --tasks_per_rs {processes_per_node}"

    def _hosts(self) -> list[str]:
        """The hosts with jsrun's processes, in order."""
        parts = self.environ.get("LSB_MCPU_HOSTS", "").split()
        names, slots = parts[::2], parts[1::2]
        if len(names) != len(slots) or not all(count.isascii() and count.isdecimal() for count in slots):
            raise ConfigurationError(
                f"environment variable LSB_MCPU_HOSTS is {' '.join(parts)[:100]!r}. It must be names of hosts, each "
                "with its number of slots, such as 'batch1 1 node07 42 node08 42'."
            )
        is_batch = len(names) > 1 and slots[0].lstrip("0") == "1" and any(count.lstrip("0") != "1" for count in slots)
        return names[1:] if is_batch else names
