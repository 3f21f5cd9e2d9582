"""Strategies: how a model is spread over devices and kept in step."""

from typing import TYPE_CHECKING

from ..utilities.lazy import lazy_names
from .base import Strategy
from .batch_norm import desynchronize
from .ddp import DDPArguments, DDPStrategy, refuse_unfrozen
from .ddp_hooks import COMMUNICATION_HOOKS
from .inputs import ProcessGroupParts, ProcessPlan, StrategyParts, keyword_parameters
from .launchers import unpicklable_path
from .manual_gradients import AveragedGradients, ManualGradients, average_gradients
from .parallel import ParallelStrategy, ProcessGroupStrategy
from .process_group import while_alive
from .reductions import REDUCTIONS, Reduction
from .single_device import SingleDeviceStrategy
from .training_step import (
    LOG_REDUCTIONS,
    LoggedValue,
    StepParts,
    TrainingStep,
    TrainingStepOptions,
    collect_logs,
    compose_training_step,
    reduce_logged,
)
from .wrapping import (
    InferenceModule,
    ModuleWrapper,
    OptimizerWrapper,
    call_without_gradients,
    move_module,
    unwrap_optimizer,
)

if TYPE_CHECKING:
    from ..checkpoints.base import CheckpointIO
    from ..registration import StrategyRegistry
    from .ddp_sharded import DDPShardedStrategy

__all__ = [
    "COMMUNICATION_HOOKS",
    "LOG_REDUCTIONS",
    "REDUCTIONS",
    "AveragedGradients",
    "CheckpointIO",
    "DDPArguments",
    "DDPShardedStrategy",
    "DDPStrategy",
    "InferenceModule",
    "LoggedValue",
    "ModuleWrapper",
    "ManualGradients",
    "OptimizerWrapper",
    "ParallelStrategy",
    "ProcessGroupParts",
    "ProcessGroupStrategy",
    "Reduction",
    "ProcessPlan",
    "SingleDeviceStrategy",
    "StepParts",
    "Strategy",
    "StrategyParts",
    "StrategyRegistry",
    "TrainingStep",
    "TrainingStepOptions",
    "average_gradients",
    "call_without_gradients",
    "collect_logs",
    "desynchronize",
    "compose_training_step",
    "keyword_parameters",
    "move_module",
    "reduce_logged",
    "unpicklable_path",
    "unwrap_optimizer",
    "refuse_unfrozen",
    "while_alive",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        # For those who write a strategy and look here for what goes with it.
        "CheckpointIO": "torch_hal.checkpoints.base",
        "StrategyRegistry": "torch_hal.registration",
        # What it needs of torch takes the better part of a second to import.
        "DDPShardedStrategy": "torch_hal.strategies.ddp_sharded",
    },
)
