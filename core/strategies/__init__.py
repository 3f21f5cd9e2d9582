"""Strategies: how a model is spread over devices and kept in step."""

from typing import TYPE_CHECKING

from core.lazy import lazy_names
from core.strategies.base import Strategy, TrainingStepOptions
from core.strategies.communication import COMMUNICATION_HOOKS
from core.strategies.ddp import DDPStrategy
from core.strategies.parallel import ParallelStrategy
from core.strategies.single_device import SingleDeviceStrategy
from core.strategies.stand_in import OptimizerStandIn

if TYPE_CHECKING:
    from core.strategies.ddp_sharded import DDPShardedStrategy

__all__ = [
    "COMMUNICATION_HOOKS",
    "DDPShardedStrategy",
    "DDPStrategy",
    "OptimizerStandIn",
    "ParallelStrategy",
    "SingleDeviceStrategy",
    "Strategy",
    "TrainingStepOptions",
]

# What it needs of torch takes the better part of a second to import.
__getattr__, __dir__ = lazy_names(__name__, {"DDPShardedStrategy": "core.strategies.ddp_sharded"})
