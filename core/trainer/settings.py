"""What the user asked of a Trainer: frozen, and checked when it is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs

from core.checking import check_count, check_path
from core.errors import ConfigurationError, WrongTypeError, quoted
from core.precisions.clipping import ALGORITHMS

__all__ = ["Settings"]


Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _count(low: int, optional: bool = False) -> Validator:
    return lambda settings, attribute, value: check_count(attribute.name, value, low, optional)


def _flag(optional: bool = False) -> Validator:
    def check(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, bool) and not (optional and value is None):
            valid = "True, False or None" if optional else "True or False"
            raise WrongTypeError(f"{attribute.name}={value!r}: must be {valid}.")

    return check


def _clip_value(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
        raise ConfigurationError(f"{attribute.name}={value!r}: must be a number > 0, or None for no clipping.")


def _clip_algorithm(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in ALGORITHMS:
        raise ConfigurationError(f"{attribute.name}={value!r}: unknown. Valid: {quoted(ALGORITHMS)}.")


def _path(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_path(attribute.name, value)


def _root(value: Any) -> Any:
    """The working directory for ``None``; a path as a string. Anything else is left to the validator."""
    return os.getcwd() if value is None else os.fspath(value) if isinstance(value, os.PathLike) else value


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of a Trainer's loops; :class:`core.Trainer` describes each.

    Raises:
        ConfigurationError: A value is out of range.
        WrongTypeError: A value has the wrong type.
    """

    max_epochs: int | None = attrs.field(default=None, validator=_count(0, optional=True))
    max_steps: int | None = attrs.field(default=None, validator=_count(0, optional=True))
    accumulate_grad_batches: int = attrs.field(default=1, validator=_count(1))
    gradient_clip_val: float | None = attrs.field(default=None, validator=_clip_value)
    gradient_clip_algorithm: str = attrs.field(default="norm", validator=_clip_algorithm)
    check_val_every_n_epoch: int = attrs.field(default=1, validator=_count(1))
    limit_train_batches: int | None = attrs.field(default=None, validator=_count(1, optional=True))
    limit_val_batches: int | None = attrs.field(default=None, validator=_count(1, optional=True))
    limit_test_batches: int | None = attrs.field(default=None, validator=_count(1, optional=True))
    limit_predict_batches: int | None = attrs.field(default=None, validator=_count(1, optional=True))
    log_every_n_steps: int = attrs.field(default=50, validator=_count(1))
    enable_checkpointing: bool = attrs.field(default=True, validator=_flag())
    enable_progress_bar: bool | None = attrs.field(default=None, validator=_flag(optional=True))
    default_root_dir: str = attrs.field(default=None, converter=_root, validator=_path)

    def limit_batches(self, stage: str) -> int | None:
        """The largest number of batches of ``stage`` (``validate``, ``test`` or ``predict``); ``None`` for all."""
        return {
            "validate": self.limit_val_batches,
            "test": self.limit_test_batches,
            "predict": self.limit_predict_batches,
        }[stage]
