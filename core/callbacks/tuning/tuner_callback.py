"""The base of callbacks that try out settings before ``fit`` trains."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigurationError, quoted
from ..base import Callback

__all__ = ["Tuning", "set_everywhere"]

logger = logging.getLogger(__name__)


class Tuning(Callback):
    """Tries out settings before each ``fit``, and sets the best for it. A resumed ``fit`` goes on with what it had."""

    def tune(self, trial: Any) -> None:
        """Try out settings; called before ``fit`` begins, unless it is resumed or ``fast_dev_run`` is set.

        Args:
            trial: ``trial.run(callback, **settings)`` trains a copy of the module for a while, with that callback
                alone; module, random numbers and data are afterwards as they were. ``trial.trainer``, ``trial.module``
                and ``trial.source`` are those of the ``fit``.
        """
        raise NotImplementedError


def set_everywhere(owners: Sequence[Any], names: Sequence[str], value: Any = None) -> Any:
    """Read an attribute, or set it in each object that has it, or has it among its hyperparameters.

    Args:
        owners: A module and a DataModule, each of which may be ``None``.
        names: Names of the attribute; the first that exists counts.
        value: The new value; ``None`` only reads.

    Returns:
        The value, the old one if there is none to set.

    Raises:
        ConfigurationError: There is no such attribute.
    """
    for name in names:
        found = None
        for owner in owners:
            own = getattr(owner, "user_module", owner)  # of a plain torch.nn.Module
            hparams = getattr(owner, "hparams", None) or {}
            if owner is not None and hasattr(own, name):
                found = getattr(own, name)
                if value is not None:
                    setattr(own, name, value)
            if name in hparams:
                found = hparams[name]
                if value is not None:
                    hparams[name] = value
        if found is not None:
            return found if value is None else value
    raise ConfigurationError(
        f"module: it has no attribute or hyperparameter {quoted(names)} with a value, which is to be set. Set it in "
        "__init__ and use it in configure_optimizers or train_dataloader, or give its name."
    )
