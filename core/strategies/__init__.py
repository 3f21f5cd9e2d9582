"""Strategies: how a model is spread over devices and kept in step."""

from core.strategies.base import Strategy, TrainingStepOptions
from core.strategies.ddp import DDPStrategy
from core.strategies.parallel import ParallelStrategy
from core.strategies.single_device import SingleDeviceStrategy

__all__ = ["DDPStrategy", "ParallelStrategy", "SingleDeviceStrategy", "Strategy", "TrainingStepOptions"]
