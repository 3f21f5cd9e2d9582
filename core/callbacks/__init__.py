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
        "BackboneFinetuning": "core.callbacks.finetuning",
        "BaseFinetuning": "core.callbacks.finetuning",
        "BasePredictionWriter": "core.callbacks.prediction_writer",
        "BatchSizeFinder": "core.callbacks.tuning.batch_size_finder",
        "Callback": "core.callbacks.base",
        "Checkpoint": "core.callbacks.checkpoint.base",
        "DeviceStatsMonitor": "core.callbacks.device_stats_monitor",
        "EMAWeightAveraging": "core.callbacks.weight_averaging",
        "EarlyStopping": "core.callbacks.early_stopping",
        "EarlyStoppingReason": "core.callbacks.early_stopping",
        "GradientAccumulationScheduler": "core.callbacks.gradient_accumulation_scheduler",
        "LambdaCallback": "core.callbacks.lambda_callback",
        "LearningRateFinder": "core.callbacks.tuning.learning_rate_finder",
        "LearningRateMonitor": "core.callbacks.lr_monitor",
        "ModelCheckpoint": "core.callbacks.checkpoint.model_checkpoint",
        "ModelSummary": "core.callbacks.display.model_summary",
        "OnExceptionCheckpoint": "core.callbacks.checkpoint.on_exception_checkpoint",
        "ProgressBar": "core.callbacks.display.progress_bar",
        "RichModelSummary": "core.callbacks.display.rich_model_summary",
        "RichProgressBar": "core.callbacks.display.rich_progress_bar",
        "StochasticWeightAveraging": "core.callbacks.stochastic_weight_averaging",
        "TQDMProgressBar": "core.callbacks.display.progress_bar",
        "ThroughputMonitor": "core.callbacks.throughput_monitor",
        "Timer": "core.callbacks.timer",
        "Watchdog": "core.callbacks.watchdog",
        "WeightAveraging": "core.callbacks.weight_averaging",
    },
)
