"""The settings of a Trainer as its attributes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar

from core.attributes import KnownAttributes
from core.trainer.foreign_attributes import FOREIGN
from core.trainer.settings import Limit

__all__ = ["FIXED_IN_FIT", "TrainerSettings"]

T = TypeVar("T")

FIXED_IN_FIT = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
"""Settings that the training step is made from, so they cannot change while it is in use."""


class _Setting(Generic[T]):
    """An attribute of the Trainer that is one of its settings. Assigning to it checks the value."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, trainer: Any, owner: type[Any]) -> T:
        if trainer is None:
            raise AttributeError(f"{owner.__name__}.{self.name} is an attribute of objects, not of the class")
        value: T = getattr(trainer.settings, self.name)
        return value

    def __set__(self, trainer: Any, value: T) -> None:
        trainer._change_setting(self.name, value)


class TrainerSettings(KnownAttributes):
    """The settings of :class:`core.Trainer`, which says what each means."""

    _foreign_attributes = FOREIGN

    is_trial = False
    """Whether this is a short run before ``fit``, in which :class:`core.callbacks.LearningRateFinder` or
    :class:`core.callbacks.BatchSizeFinder` tries out a setting."""

    fast_dev_run = _Setting[int | bool]()
    max_epochs = _Setting[int]()
    min_epochs = _Setting[int | None]()
    max_steps = _Setting[int]()
    min_steps = _Setting[int | None]()
    limit_train_batches = _Setting[Limit | None]()
    limit_val_batches = _Setting[Limit | None]()
    limit_test_batches = _Setting[Limit | None]()
    limit_predict_batches = _Setting[Limit | None]()
    overfit_batches = _Setting[Limit]()
    val_check_interval = _Setting[Limit | str | timedelta | dict[str, int]]()
    check_val_every_n_epoch = _Setting[int | None]()
    num_sanity_val_steps = _Setting[int]()
    accumulate_grad_batches = _Setting[int]()
    gradient_clip_val = _Setting[float | None]()
    gradient_clip_algorithm = _Setting[str]()
    log_every_n_steps = _Setting[int]()
    default_root_dir = _Setting[str]()
