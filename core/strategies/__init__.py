"""Strategies: how a model is spread over devices and kept in step."""

from typing import TYPE_CHECKING

from core.strategies.base import Strategy
from core.strategies.constructor_arguments import StrategyParts, keyword_parameters
from core.strategies.ddp import DDPArguments, DDPStrategy
from core.strategies.exchange.ddp_hooks import COMMUNICATION_HOOKS
from core.strategies.exchange.reductions import REDUCTIONS, Reduction
from core.strategies.group.destroy import while_alive
from core.strategies.launchers import unpicklable_path
from core.strategies.parallel import ParallelStrategy, ProcessGroupParts, ProcessGroupStrategy
from core.strategies.process_plan import ProcessPlan
from core.strategies.single_device import SingleDeviceStrategy
from core.strategies.step.inference import InferenceModule, call_without_gradients
from core.strategies.step.log_capture import LOG_REDUCTIONS, LoggedValue, collect_logs, reduce_logged
from core.strategies.step.manual_gradients import AveragedGradients, ManualGradients, average_gradients
from core.strategies.step.training_step import StepParts, TrainingStep, TrainingStepOptions, compose_training_step
from core.strategies.wrapping.batch_norm import desynchronize
from core.strategies.wrapping.module_wrapper import ModuleWrapper
from core.strategies.wrapping.optimizer_wrapper import OptimizerWrapper, unwrap_optimizer
from core.strategies.wrapping.placement import move_module
from core.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from core.checkpoints.base import CheckpointIO
    from core.registration import StrategyRegistry
    from core.strategies.ddp_sharded import DDPShardedStrategy

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
    "while_alive",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        # For those who write a strategy and look here for what goes with it.
        "CheckpointIO": "core.checkpoints.base",
        "StrategyRegistry": "core.registration",
        # What it needs of torch takes the better part of a second to import.
        "DDPShardedStrategy": "core.strategies.ddp_sharded",
    },
)
