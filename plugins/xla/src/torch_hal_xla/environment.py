"""Who this process is among those that torch_xla started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from core import ClusterEnvironment
from core.errors import ConfigurationError
from torch_hal_xla import detect

__all__ = ["XLAEnvironment"]

_DEFAULT_PORT = 12355  # torch_xla's own


class XLAEnvironment(ClusterEnvironment):
    """Ranks from torch_xla's runtime, in a process (or thread) that ``torch_xla.launch`` started.

    The runtime is asked, and so started, in such a process only.
    """

    name = "xla"

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether torch_xla started this process, by its environment variables."""
        return detect.is_launched(os.environ if environ is None else environ)

    @property
    def creates_processes_externally(self) -> bool:
        """Whether torch_xla started this process."""
        return detect.is_launched(self.environ)

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, else what the runtime found out on TPUs, else the loopback address."""
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
        """The runtime's ``local_device_count``: a process, or a thread of one, runs on each device."""
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
        """Refuse a process that torch_xla did not start, and other numbers than it gave.

        Raises:
            ConfigurationError: As said.
        """
        if not self.creates_processes_externally:
            raise ConfigurationError(
                f"cluster_environment={self.name!r}: torch_xla did not start this process ({detect.LAUNCHED} is not "
                "set). Valid: 'auto'."
            )
        if (processes_per_node, num_nodes) != (self.local_world_size, self.num_nodes):
            raise ConfigurationError(
                f"devices, num_nodes: {processes_per_node} process(es) on {num_nodes} machine(s) asked for, but "
                f"torch_xla started {self.local_world_size} on {self.num_nodes}. Valid: those numbers, or 'auto'."
            )
