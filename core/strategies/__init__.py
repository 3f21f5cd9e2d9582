"""Strategies: how a model is spread over devices and kept in step."""

from typing import TYPE_CHECKING, Any

from core.strategies.base import Strategy, TrainingStepOptions
from core.strategies.communication import COMMUNICATION_HOOKS
from core.strategies.ddp import DDPStrategy
from core.strategies.parallel import ParallelStrategy
from core.strategies.single_device import SingleDeviceStrategy

if TYPE_CHECKING:
    from core.strategies.ddp_sharded import DDPShardedStrategy

__all__ = [
    "COMMUNICATION_HOOKS",
    "DDPShardedStrategy",
    "DDPStrategy",
    "ParallelStrategy",
    "SingleDeviceStrategy",
    "Strategy",
    "TrainingStepOptions",
]


def __getattr__(name: str) -> Any:
    if name == "DDPShardedStrategy":  # what it needs of torch takes the better part of a second to import
        from core.strategies.ddp_sharded import DDPShardedStrategy

        return DDPShardedStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
