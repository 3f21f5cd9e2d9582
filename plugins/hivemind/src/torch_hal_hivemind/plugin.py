"""The backends of this package; importing it imports neither torch nor hivemind."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import StrategySpec

__all__ = ["core_strategies"]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Strategy ``hivemind``."""
    return [
        StrategySpec(
            name="hivemind",
            target="torch_hal_hivemind.strategy:HivemindStrategy",
            description="peers that join and leave, each a run of one process; together they fill the batch of a step",
        )
    ]
