"""Strategies: how a model is spread over devices and kept in step."""

from typing import TYPE_CHECKING

from core.lazy import lazy_names
from core.strategies.base import Strategy, TrainingStepOptions
from core.strategies.communication import COMMUNICATION_HOOKS
from core.strategies.ddp import DDPStrategy
from core.strategies.optimizer_wrapper import OptimizerWrapper
from core.strategies.parallel import ParallelStrategy
from core.strategies.single_device import SingleDeviceStrategy

if TYPE_CHECKING:
    from core.strategies.ddp_sharded import DDPShardedStrategy

__all__ = [
    "COMMUNICATION_HOOKS",
    "DDPShardedStrategy",
    "DDPStrategy",
    "OptimizerWrapper",
    "ParallelStrategy",
    "SingleDeviceStrategy",
    "Strategy",
    "TrainingStepOptions",
]

# What it needs of torch takes the better part of a second to import.
__getattr__, __dir__ = lazy_names(__name__, {"DDPShardedStrategy": "core.strategies.ddp_sharded"})
