"""Callbacks of the Trainer: their base class, and those that core brings, one in each file."""

from __future__ import annotations

from ..utilities.lazy import lazy_names

TYPE_CHECKING = False  # true for type checkers; importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from .base import Callback
    from .checkpoint.base import Checkpoint
    from .checkpoint.model_checkpoint import ModelCheckpoint
    from .checkpoint.on_exception_checkpoint import OnExceptionCheckpoint
    from .device_stats_monitor import DeviceStatsMonitor
    from .display.model_summary import ModelSummary
    from .display.progress_bar import ProgressBar, TQDMProgressBar
    from .display.rich_model_summary import RichModelSummary
    from .display.rich_progress_bar import RichProgressBar
    from .early_stopping import EarlyStopping, EarlyStoppingReason
    from .finetuning import BackboneFinetuning, BaseFinetuning
    from .gradient_accumulation_scheduler import GradientAccumulationScheduler
    from .lambda_callback import LambdaCallback
    from .lr_monitor import LearningRateMonitor
    from .prediction_writer import BasePredictionWriter
    from .stochastic_weight_averaging import StochasticWeightAveraging
    from .throughput_monitor import ThroughputMonitor
    from .timer import Timer
    from .tuning.batch_size_finder import BatchSizeFinder
    from .tuning.learning_rate_finder import LearningRateFinder
    from .watchdog import Watchdog
    from .weight_averaging import EMAWeightAveraging, WeightAveraging

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "Checkpoint",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "EarlyStoppingReason",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "ThroughputMonitor",
    "Timer",
    "Watchdog",
    "WeightAveraging",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BackboneFinetuning": "torch_hal.callbacks.finetuning",
        "BaseFinetuning": "torch_hal.callbacks.finetuning",
        "BasePredictionWriter": "torch_hal.callbacks.prediction_writer",
        "BatchSizeFinder": "torch_hal.callbacks.tuning.batch_size_finder",
        "Callback": "torch_hal.callbacks.base",
        "Checkpoint": "torch_hal.callbacks.checkpoint.base",
        "DeviceStatsMonitor": "torch_hal.callbacks.device_stats_monitor",
        "EMAWeightAveraging": "torch_hal.callbacks.weight_averaging",
        "EarlyStopping": "torch_hal.callbacks.early_stopping",
        "EarlyStoppingReason": "torch_hal.callbacks.early_stopping",
        "GradientAccumulationScheduler": "torch_hal.callbacks.gradient_accumulation_scheduler",
        "LambdaCallback": "torch_hal.callbacks.lambda_callback",
        "LearningRateFinder": "torch_hal.callbacks.tuning.learning_rate_finder",
        "LearningRateMonitor": "torch_hal.callbacks.lr_monitor",
        "ModelCheckpoint": "torch_hal.callbacks.checkpoint.model_checkpoint",
        "ModelSummary": "torch_hal.callbacks.display.model_summary",
        "OnExceptionCheckpoint": "torch_hal.callbacks.checkpoint.on_exception_checkpoint",
        "ProgressBar": "torch_hal.callbacks.display.progress_bar",
        "RichModelSummary": "torch_hal.callbacks.display.rich_model_summary",
        "RichProgressBar": "torch_hal.callbacks.display.rich_progress_bar",
        "StochasticWeightAveraging": "torch_hal.callbacks.stochastic_weight_averaging",
        "TQDMProgressBar": "torch_hal.callbacks.display.progress_bar",
        "ThroughputMonitor": "torch_hal.callbacks.throughput_monitor",
        "Timer": "torch_hal.callbacks.timer",
        "Watchdog": "torch_hal.callbacks.watchdog",
        "WeightAveraging": "torch_hal.callbacks.weight_averaging",
    },
)
