"""Callbacks of the Trainer: their base class, and those that core brings."""

from __future__ import annotations

from ..utilities.lazy import lazy_names

TYPE_CHECKING = False  # true for type checkers; importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from .base import Callback, Checkpoint, LambdaCallback
    from .checkpoint.model_checkpoint import ModelCheckpoint
    from .checkpoint.on_exception_checkpoint import OnExceptionCheckpoint
    from .display.model_summary import ModelSummary
    from .display.progress_bar import ProgressBar, TQDMProgressBar
    from .display.rich_display import RichModelSummary, RichProgressBar
    from .early_stopping import EarlyStopping, EarlyStoppingReason
    from .finetuning import BackboneFinetuning, BaseFinetuning
    from .gradient_accumulation_scheduler import GradientAccumulationScheduler
    from .monitors import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
    from .prediction_writer import BasePredictionWriter
    from .timer import Timer
    from .tuning import BatchSizeFinder, LearningRateFinder
    from .watchdog import Watchdog
    from .weight_averaging import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging

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
        "BatchSizeFinder": "torch_hal.callbacks.tuning",
        "Callback": "torch_hal.callbacks.base",
        "Checkpoint": "torch_hal.callbacks.base",
        "DeviceStatsMonitor": "torch_hal.callbacks.monitors",
        "EMAWeightAveraging": "torch_hal.callbacks.weight_averaging",
        "EarlyStopping": "torch_hal.callbacks.early_stopping",
        "EarlyStoppingReason": "torch_hal.callbacks.early_stopping",
        "GradientAccumulationScheduler": "torch_hal.callbacks.gradient_accumulation_scheduler",
        "LambdaCallback": "torch_hal.callbacks.base",
        "LearningRateFinder": "torch_hal.callbacks.tuning",
        "LearningRateMonitor": "torch_hal.callbacks.monitors",
        "ModelCheckpoint": "torch_hal.callbacks.checkpoint.model_checkpoint",
        "ModelSummary": "torch_hal.callbacks.display.model_summary",
        "OnExceptionCheckpoint": "torch_hal.callbacks.checkpoint.on_exception_checkpoint",
        "ProgressBar": "torch_hal.callbacks.display.progress_bar",
        "RichModelSummary": "torch_hal.callbacks.display.rich_display",
        "RichProgressBar": "torch_hal.callbacks.display.rich_display",
        "StochasticWeightAveraging": "torch_hal.callbacks.weight_averaging",
        "TQDMProgressBar": "torch_hal.callbacks.display.progress_bar",
        "ThroughputMonitor": "torch_hal.callbacks.monitors",
        "Timer": "torch_hal.callbacks.timer",
        "Watchdog": "torch_hal.callbacks.watchdog",
        "WeightAveraging": "torch_hal.callbacks.weight_averaging",
    },
)
