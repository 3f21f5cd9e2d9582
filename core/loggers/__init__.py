"""Loggers: where metrics go. Runtime's trackers and the Trainer's loggers are the same classes, one in each file.

A logger is requested by name (``Runtime(log_with="tensorboard")``) or made by its class. The libraries behind them are
imported when a run is opened. A distribution adds one with an entry point in the group ``core.loggers``::

    [project.entry-points."core.loggers"]
    acme = "acme_tracking.logger:AcmeLogger"
"""

from __future__ import annotations

from ..utilities.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .adapted import adapted
    from .base import Logger
    from .comet import CometLogger
    from .csv_file import CSVLogger
    from .find import find_loggers
    from .json_lines import JSONLogger
    from .ml_flow import MLFlowLogger
    from .tensor_board import TensorBoardLogger
    from .weights_and_biases import WandbLogger

__all__ = [
    "CSVLogger",
    "CometLogger",
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
        "CSVLogger": "core.loggers.csv_file",
        "CometLogger": "core.loggers.comet",
        "JSONLogger": "core.loggers.json_lines",
        "Logger": "core.loggers.base",
        "MLFlowLogger": "core.loggers.ml_flow",
        "TensorBoardLogger": "core.loggers.tensor_board",
        "WandbLogger": "core.loggers.weights_and_biases",
        "adapted": "core.loggers.adapted",
        "find_loggers": "core.loggers.find",
    },
)
