"""Strategies: how a model is spread over devices and kept in step."""

from typing import TYPE_CHECKING

from ..utilities.lazy import lazy_names
from .base import Strategy
from .constructor_arguments import ProcessGroupParts, StrategyParts, keyword_parameters
from .ddp import DDPArguments, DDPStrategy, refuse_unfrozen
from .exchange.ddp_hooks import COMMUNICATION_HOOKS
from .exchange.reductions import REDUCTIONS, Reduction
from .group.destroy import while_alive
from .launchers import unpicklable_path
from .parallel import ParallelStrategy, ProcessGroupStrategy
from .process_plan import ProcessPlan
from .single_device import SingleDeviceStrategy
from .step.inference import InferenceModule, call_without_gradients
from .step.log_capture import LOG_REDUCTIONS, LoggedValue, collect_logs, reduce_logged
from .step.manual_gradients import AveragedGradients, ManualGradients, average_gradients
from .step.training_step import StepParts, TrainingStep, TrainingStepOptions, compose_training_step
from .wrapping.batch_norm import desynchronize
from .wrapping.module_wrapper import ModuleWrapper
from .wrapping.optimizer_wrapper import OptimizerWrapper, unwrap_optimizer
from .wrapping.placement import move_module

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
