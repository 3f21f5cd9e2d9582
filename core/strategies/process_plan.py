"""The Plan's decisions about devices and processes, as a Strategy receives them."""

from __future__ import annotations

import attrs

__all__ = ["ProcessPlan"]


@attrs.frozen(kw_only=True)
class ProcessPlan:
    """Devices and processes of one run. A strategy carries this out and decides none of it again."""

    devices: tuple[str, ...]
    """The devices of one machine, such as ``("cpu", "cpu")``: one for each process, by local rank; or all devices of
    the one process, if it drives them all."""
    num_nodes: int
    """Number of machines."""
    world_size: int
    """Number of processes on all machines."""
    launcher: str | None
    """How the processes of the run are started, as in :attr:`core.Strategy.launcher`; ``None`` if none are."""
    process_group_backend: str | None
    """The ``torch.distributed`` backend; ``None`` if the run has no process group."""
    plan_for_ranks: str
    """The part of the Plan that started processes need, as JSON."""

    @property
    def processes_per_node(self) -> int:
        """Number of processes on each machine."""
        return self.world_size // self.num_nodes
