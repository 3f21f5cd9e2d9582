"""Loggers: where metrics go. Runtime's trackers and the Trainer's loggers are the same classes.

A logger is requested by name (``Runtime(log_with="tensorboard")``) or made by its class. The libraries behind them are
imported when a run is opened. A distribution adds one with an entry point in the group ``core.loggers``::

    [project.entry-points."core.loggers"]
    acme = "acme_tracking.logger:AcmeLogger"
"""

from __future__ import annotations

from ..utilities.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import Logger
    from .find import adapted, find_loggers
    from .folders import FolderLogger
    from .services import CometLogger, MLFlowLogger, WandbLogger
    from .tensor_board import TensorBoardLogger
    from .text_files import CSVLogger, JSONLogger

__all__ = [
    "CSVLogger",
    "CometLogger",
    "FolderLogger",
    "JSONLogger",
    "Logger",
    "MLFlowLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "adapted",
    "find_loggers",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CSVLogger": "torch_hal.loggers.text_files",
        "CometLogger": "torch_hal.loggers.services",
        "FolderLogger": "torch_hal.loggers.folders",
        "JSONLogger": "torch_hal.loggers.text_files",
        "Logger": "torch_hal.loggers.base",
        "MLFlowLogger": "torch_hal.loggers.services",
        "TensorBoardLogger": "torch_hal.loggers.tensor_board",
        "WandbLogger": "torch_hal.loggers.services",
        "adapted": "torch_hal.loggers.find",
        "find_loggers": "torch_hal.loggers.find",
    },
)
