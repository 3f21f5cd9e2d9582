"""The settings of a Trainer as its attributes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from core.errors import ConfigurationError
from core.trainer.settings import Limit, Settings

__all__ = ["FIXED_IN_FIT", "TrainerSettings"]

T = TypeVar("T")

FIXED_IN_FIT = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
"""Settings that the training step is made from, so they cannot change while it is in use."""

OTHERS = (
    *("devices", "checkpoint_io", "cluster_environment", "plugins", "import_modules", "auto_select_gpus"),
    *("signals", "barebones"),
)
"""Arguments of the Trainer that it has no attributes for."""
CLOSE = 0.9
"""How similar to a setting's name an attribute is that is taken for a misspelt one; ``my_max_epochs`` is not."""


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


class TrainerSettings:
    """The settings of :class:`core.Trainer`, which says what each means."""

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
    val_check_interval = _Setting[Limit]()
    check_val_every_n_epoch = _Setting[int | None]()
    num_sanity_val_steps = _Setting[int]()
    accumulate_grad_batches = _Setting[int]()
    gradient_clip_val = _Setting[float | None]()
    gradient_clip_algorithm = _Setting[str]()
    log_every_n_steps = _Setting[int]()
    default_root_dir = _Setting[str]()

    if not TYPE_CHECKING:  # it would allow every attribute

        def __setattr__(self, name: str, value: Any) -> None:
            is_known = name in self.__dict__ or any(name in vars(kind) for kind in type(self).__mro__)
            if not is_known and not name.startswith("_"):
                _check_own(name, value)
            super().__setattr__(name, value)


def _check_own(name: str, value: Any) -> None:
    """Refuse a misspelt setting, and an argument of the constructor that has no effect as an attribute."""
    arguments = (*(field.name for field in attrs.fields(Settings)), *OTHERS)
    if name in arguments:
        raise ConfigurationError(
            f"trainer.{name} = {value!r}: has no effect after the Trainer was made. Pass it to the constructor: "
            f"Trainer({name}={value!r})."
        )
    close = difflib.get_close_matches(name, arguments, n=1, cutoff=CLOSE)
    if close:
        raise ConfigurationError(f"trainer.{name} = {value!r}: there is no such setting. Did you mean {close[0]!r}?")
