"""Callbacks of the Trainer: their base class, and those that core brings, one in each file."""

from __future__ import annotations

from core.utilities.lazy import lazy_names

TYPE_CHECKING = False  # true for type checkers; importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from core.callbacks.base import Callback
    from core.callbacks.checkpoint.base import Checkpoint
    from core.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
    from core.callbacks.checkpoint.on_exception_checkpoint import OnExceptionCheckpoint
    from core.callbacks.device_stats_monitor import DeviceStatsMonitor
    from core.callbacks.display.model_summary import ModelSummary
    from core.callbacks.display.progress_bar import ProgressBar, TQDMProgressBar
    from core.callbacks.display.rich_model_summary import RichModelSummary
    from core.callbacks.display.rich_progress_bar import RichProgressBar
    from core.callbacks.early_stopping import EarlyStopping, EarlyStoppingReason
    from core.callbacks.finetuning import BackboneFinetuning, BaseFinetuning
    from core.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from core.callbacks.lambda_callback import LambdaCallback
    from core.callbacks.lr_monitor import LearningRateMonitor
    from core.callbacks.prediction_writer import BasePredictionWriter
    from core.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
    from core.callbacks.throughput_monitor import ThroughputMonitor
    from core.callbacks.timer import Timer
    from core.callbacks.tuning.batch_size_finder import BatchSizeFinder
    from core.callbacks.tuning.learning_rate_finder import LearningRateFinder
    from core.callbacks.watchdog import Watchdog
    from core.callbacks.weight_averaging import EMAWeightAveraging, WeightAveraging

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
