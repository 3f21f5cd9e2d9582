"""The backends of this package; importing it imports neither torch nor torchft."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import StrategySpec

__all__ = ["core_strategies"]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Strategy ``torchft``."""
    return [
        StrategySpec(
            name="torchft",
            target="torch_hal_torchft.strategy:TorchFTStrategy",
            description="replicas, each a run of one process; a step goes on without one that is lost, and it rejoins",
        )
    ]
