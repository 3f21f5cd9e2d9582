"""The cluster environment of processes that torch_xla started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_hal import ClusterEnvironment
from torch_hal.errors import ConfigurationError
from torch_hal_xla import detect

__all__ = ["XLAEnvironment"]

_DEFAULT_PORT = 12355  # torch_xla's own


class XLAEnvironment(ClusterEnvironment):
    """Ranks from torch_xla's runtime, in a process (or thread) that ``torch_xla.launch`` started.

    Only in such a process does it query, and so start, the runtime.
    """

    name = "xla"

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Return whether torch_xla started this process, according to its environment variables."""
        return detect.is_launched(os.environ if environ is None else environ)

    @property
    def creates_processes_externally(self) -> bool:
        """Whether torch_xla started this process."""
        return detect.is_launched(self.environ)

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, on TPUs else the runtime's address, else the loopback address."""
        import torch_xla.runtime as xr

        given = self.environ.get("MASTER_ADDR")
        if given:
            return given
        return str(xr.get_master_ip()) if xr.device_type() == "TPU" else "127.0.0.1"

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``, else torch_xla's own default."""
        return int(self.environ.get("MASTER_PORT", _DEFAULT_PORT))

    @property
    def world_size(self) -> int:
        """The runtime's ``world_size``."""
        import torch_xla.runtime as xr

        return int(xr.world_size())

    @property
    def local_world_size(self) -> int:
        """The runtime's ``local_device_count``: one process or thread per device."""
        import torch_xla.runtime as xr

        return int(xr.local_device_count())

    @property
    def global_rank(self) -> int:
        """The runtime's ``global_ordinal``."""
        import torch_xla.runtime as xr

        return int(xr.global_ordinal())

    @property
    def local_rank(self) -> int:
        """The runtime's ``local_ordinal``."""
        import torch_xla.runtime as xr

        return int(xr.local_ordinal())

    @property
    def node_rank(self) -> int:
        """The runtime's ``host_index``."""
        import torch_xla.runtime as xr

        return int(xr.host_index())

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Check that torch_xla started this process, with these numbers.

        Raises:
            ConfigurationError: torch_xla did not start this process, or started other numbers of processes or machines.
        """
        if not self.creates_processes_externally:
            raise ConfigurationError(
                f"cluster_environment={self.name!r}: torch_xla did not start this process ({detect.LAUNCHED} is not "
                "set). Use cluster_environment='auto'."
            )
        if (processes_per_node, num_nodes) != (self.local_world_size, self.num_nodes):
            raise ConfigurationError(
                f"devices, num_nodes: {processes_per_node} process(es) on {num_nodes} machine(s) requested, but "
                f"torch_xla started {self.local_world_size} on {self.num_nodes}. Use those numbers, or 'auto'."
            )
