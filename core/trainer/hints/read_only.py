"""Attributes of modules and DataModules that say what a run is: assigning one is an error that names the remedy."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from ...errors import ConfigurationError

__all__ = ["refuse_assignments"]

C = TypeVar("C")

_COUNTER = "It says where the run is. Use another name for a counter of your own."
_RANK = "It is the number of this process, which the launcher tells. Remove the line."
_LOGGER = "It is the Trainer's. Set Trainer(logger=...), or use another name for an object of your own."
_HPARAMS = "Call self.save_hyperparameters(...) with them."
REMEDIES = {
    "device": "It is where the parameters are: the strategy moves them. Remove the line, or use another name.",
    "dtype": "It is that of the parameters. Set precision= of the Trainer, or use another name.",
    "current_epoch": _COUNTER,
    "global_step": _COUNTER,
    "global_rank": _RANK,
    "local_rank": _RANK,
    "logger": _LOGGER,
    "loggers": _LOGGER,
    "hparams": _HPARAMS,
    "hparams_initial": _HPARAMS,
}
"""For each property that cannot be assigned: what to do."""


def refuse_assignments(cls: type[C]) -> type[C]:
    """Decorator: let the properties of ``cls`` that cannot be assigned say so, and what to do instead."""
    for name, remedy in REMEDIES.items():
        found = inspect.getattr_static(cls, name, None)
        if isinstance(found, property):
            setattr(cls, name, found.setter(_refusing(name, remedy)))
    return cls


def _refusing(name: str, remedy: str) -> Any:
    def refuse(self: Any, value: Any) -> None:
        raise ConfigurationError(f"{type(self).__name__}.{name} = {value!r:.80}: cannot be assigned. {remedy}")

    return refuse
