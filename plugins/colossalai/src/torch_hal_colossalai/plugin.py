"""The backends of this package; importing it imports neither torch nor Colossal-AI."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import StrategySpec

__all__ = ["core_strategies"]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Strategy ``colossalai``."""
    return [
        StrategySpec(
            name="colossalai",
            target="torch_hal_colossalai.strategy:ColossalAIStrategy",
            description="Colossal-AI's booster with its TorchDDPPlugin: a replica in each process",
            accelerators=("cpu", "cuda", "npu"),
        )
    ]
