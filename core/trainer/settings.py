"""The user's settings of a Trainer: frozen, and checked when they are given."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import torch

from ..callbacks.timer import read_duration
from ..checkpoints.base import CheckpointIO
from ..discovery.registry import Registry
from ..environments.base import ClusterEnvironment
from ..environments.local import own_environ
from ..errors import ConfigurationError, CoreError, UnknownNameError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import check_count, check_flags, check_path, instead_of_class, is_list
from ..kinds import KINDS
from ..precisions.base import Precision
from ..precisions.gradient_clipping import ALGORITHMS
from ..strategies.base import Strategy

if TYPE_CHECKING:
    from .trainer import Trainer


Limit = int | float
"""A number of batches as an integer, or a fraction of all of them as a float."""

DEFAULT_EPOCHS = 1000
"""Epochs to train if none of ``max_epochs``, ``max_steps`` and ``max_time`` is given."""

BY_DEFAULT = ("val_check_interval", "num_sanity_val_steps", "log_every_n_steps")
"""The arguments whose ``None`` stands for the default, which is not ``None``."""
UNLIMITED = -1
"""The value of ``max_epochs`` and ``max_steps`` for no limit."""

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _checked_by(check: Callable[..., Any], *arguments: Any) -> Validator:
    """A validator that calls ``check`` with the setting's name, its value and ``arguments``."""
    return lambda settings, attribute, value: check(attribute.name, value, *arguments)


def _count(low: int, optional: bool = False) -> Validator:
    return _checked_by(check_count, low, optional)


def _must_be(valid: str, is_valid: Callable[[Any], bool], error: type[CoreError] = ConfigurationError) -> Validator:
    """Return a validator that raises ``error``, saying what is ``valid``, unless ``is_valid(value)``."""

    def check(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not is_valid(value):
            raise error(f"{attribute.name}={value!r}: must be {valid}.")

    return check


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_limit(value: Any) -> bool:
    return (isinstance(value, float) and 0 <= value <= 1) or (_is_integer(value) and value >= 0)


_LIMIT = "an integer ≥ 0 (batches) or a float from 0.0 to 1.0 (a fraction of all batches)"

_maximum = _must_be("an integer ≥ 0; -1 or None for no limit", lambda value: _is_integer(value) and value >= UNLIMITED)
_limit = _must_be(_LIMIT, _is_limit)
_optional_limit = _must_be(f"{_LIMIT}; or None for all", lambda value: value is None or _is_limit(value))
_flag = _must_be("True or False", lambda value: isinstance(value, bool), WrongTypeError)
_optional_flag = _must_be("True, False or None", lambda value: isinstance(value, bool | None), WrongTypeError)
_dev_run = _must_be("True, False, or a number of batches ≥ 1", lambda value: isinstance(value, int) and value >= 0)
_deterministic = _must_be(
    "True, False, 'warn' or None", lambda value: isinstance(value, bool | None) or value == "warn"
)
_clip_value = _must_be(
    "a number > 0; None or 0 for no clipping",
    lambda value: value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0),
)


def _accumulation(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, Mapping):
        raise ConfigurationError(
            f"{attribute.name}={value!r}: must be an integer ≥ 1. For a number that changes, add "
            "core.callbacks.GradientAccumulationScheduler(...) to callbacks=."
        )
    check_count(attribute.name, value, 1)


def _interval(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, str | timedelta | dict):
        read_duration(attribute.name, value)
    elif not _is_limit(value) or not value:
        raise ConfigurationError(
            f"{attribute.name}={value!r}: must be an integer ≥ 1 (batches), a float from 0.0 to 1.0 (a fraction of "
            "the epoch), or a time such as '00:00:30:00' or a timedelta. To leave out validation, set "
            "limit_val_batches=0."
        )


def _clip_algorithm(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in ALGORITHMS:
        raise ConfigurationError(f"{attribute.name}={value!r}: unknown. Valid: {quoted(ALGORITHMS)}.")


def _compile(settings: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not isinstance(value, bool | Mapping):
        raise WrongTypeError(f"compile={value!r}: must be True, False, None, or a dict of torch.compile's arguments.")
    valid = [name for name in inspect.signature(torch.compile).parameters if name not in ("model", "disable")]
    for name in value if isinstance(value, Mapping) else ():
        if name not in valid:
            raise ConfigurationError(
                f"compile={value!r}: torch.compile has no argument {name!r}.{nearest(name, valid)} Valid: "
                f"{quoted(valid)}."
            )


def _unlimited(value: Any) -> Any:
    return UNLIMITED if value is None else value


def _added(value: Any) -> Any:
    return True if value is None else value


def _clipped(value: Any) -> Any:
    return None if value == 0 and not isinstance(value, bool) else value


def _root(value: Any) -> Any:
    """The working directory for ``None``; a path as a string. Anything else is left to the validator."""
    if value is None:
        return os.getcwd()
    if not isinstance(value, str | os.PathLike):
        return value
    return os.path.expanduser(os.fspath(value)).removeprefix("file://")


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of a Trainer's loops; :class:`core.Trainer` describes each.

    Raises:
        ConfigurationError: A value is out of range.
        WrongTypeError: A value has the wrong type.
    """

    fast_dev_run: int | bool = attrs.field(default=False, validator=_dev_run)
    max_epochs: int = attrs.field(default=None, converter=_unlimited, validator=_maximum)
    min_epochs: int | None = attrs.field(default=None, validator=_count(0, optional=True))
    max_steps: int = attrs.field(default=None, converter=_unlimited, validator=_maximum)
    min_steps: int | None = attrs.field(default=None, validator=_count(0, optional=True))
    max_time: str | timedelta | dict[str, int] | None = attrs.field(default=None, validator=_checked_by(read_duration))
    limit_train_batches: Limit | None = attrs.field(default=None, validator=_optional_limit)
    limit_val_batches: Limit | None = attrs.field(default=None, validator=_optional_limit)
    limit_test_batches: Limit | None = attrs.field(default=None, validator=_optional_limit)
    limit_predict_batches: Limit | None = attrs.field(default=None, validator=_optional_limit)
    overfit_batches: Limit = attrs.field(default=0.0, validator=_limit)
    val_check_interval: Limit | str | timedelta | dict[str, int] = attrs.field(default=1.0, validator=_interval)
    check_val_every_n_epoch: int | None = attrs.field(default=1, validator=_count(1, optional=True))
    num_sanity_val_steps: int = attrs.field(default=2, validator=_count(-1))
    accumulate_grad_batches: int = attrs.field(default=1, validator=_accumulation)
    gradient_clip_val: float | None = attrs.field(default=None, converter=_clipped, validator=_clip_value)
    gradient_clip_algorithm: str = attrs.field(default="norm", validator=_clip_algorithm)
    log_every_n_steps: int = attrs.field(default=50, validator=_count(1))
    enable_checkpointing: bool = attrs.field(default=True, converter=_added, validator=_flag)
    enable_progress_bar: bool | None = attrs.field(default=None, validator=_optional_flag)
    enable_model_summary: bool | None = attrs.field(default=None, validator=_optional_flag)
    deterministic: bool | str | None = attrs.field(default=None, validator=_deterministic)
    benchmark: bool | None = attrs.field(default=None, validator=_optional_flag)
    inference_mode: bool = attrs.field(default=True, validator=_flag)
    use_distributed_sampler: bool = attrs.field(default=True, validator=_flag)
    sync_batchnorm: bool = attrs.field(default=False, validator=_flag)
    compile: bool | dict[str, Any] | None = attrs.field(default=None, validator=_compile)
    detect_anomaly: bool = attrs.field(default=False, validator=_flag)
    reload_dataloaders_every_n_epochs: int = attrs.field(default=0, validator=_count(0))
    default_root_dir: str = attrs.field(default=None, converter=_root, validator=_checked_by(check_path))

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Settings:
        """The settings among the arguments of a Trainer, of which some are ``None`` for the default."""
        own = {}
        for name in attrs.fields_dict(cls):
            if given[name] is not None or name not in BY_DEFAULT:
                own[name] = given[name]
        return cls(**own)

    def __attrs_post_init__(self) -> None:
        if self.check_val_every_n_epoch is None and isinstance(self.val_check_interval, float):
            raise ConfigurationError(
                f"check_val_every_n_epoch=None, val_check_interval={self.val_check_interval}: batches are counted over "
                "all epochs then, so val_check_interval must be an integer or a time. Set it, or "
                "check_val_every_n_epoch."
            )

        for unit in ("epochs", "steps"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most not in (None, -1) and least > most:
                raise ConfigurationError(
                    f"min_{unit}={least}, max_{unit}={most}: a run cannot have more {unit} than max_{unit}. Lower the "
                    "first, or raise the second."
                )

    def reduced(self) -> Settings:
        """These settings with the effect of ``fast_dev_run`` and ``overfit_batches`` on the others."""
        changes: dict[str, Any] = {}
        count = int(self.fast_dev_run)
        if count:
            changes = {
                **{f"limit_{kind}_batches": count for kind in ("train", "val", "test", "predict")},
                "min_epochs": None,
                "max_epochs": 1,
                "min_steps": None,
                "max_steps": count,
                "num_sanity_val_steps": 0,
                "val_check_interval": 1.0,
                "check_val_every_n_epoch": 1,
            }
        if self.overfit_batches:
            changes |= {"limit_train_batches": self.overfit_batches, "limit_val_batches": self.overfit_batches}
        return attrs.evolve(self, **changes) if changes else self

    def source_of(self, limit: str) -> str:
        """The argument of the Trainer that has set ``limit``, such as ``limit_train_batches``; for error messages."""
        is_overfit = self.overfit_batches and limit in ("limit_train_batches", "limit_val_batches")
        return "overfit_batches" if is_overfit else limit

    @property
    def epoch_limit(self) -> float:
        """``max_epochs``; infinite for no limit."""
        return math.inf if self.max_epochs == UNLIMITED else self.max_epochs

    @property
    def step_limit(self) -> float:
        """``max_steps``; infinite for no limit."""
        return math.inf if self.max_steps == UNLIMITED else self.max_steps

    @property
    def val_check_seconds(self) -> float | None:
        """``val_check_interval`` where it is a time; ``None`` where it counts batches."""
        interval = self.val_check_interval
        return None if isinstance(interval, int | float) else read_duration("val_check_interval", interval)

    def limit_batches(self, kind: str) -> Limit | None:
        """The limit for loaders of ``kind`` (``train``, ``val``, ``test`` or ``predict``); ``None`` for all batches."""
        limit: Limit | None = getattr(self, f"limit_{kind}_batches")
        return limit


def check_supported(settings: Settings, strategy: Strategy) -> None:
    """Reject what the strategy cannot do, before processes start."""
    if settings.gradient_clip_val is not None:
        strategy.check_clip_algorithm(settings.gradient_clip_algorithm, "gradient_clip_algorithm")
    if settings.compile:
        strategy.check_compile(f"compile={settings.compile!r}")


T = TypeVar("T")

FIXED_IN_FIT = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
"""Settings that the training step is made from, so they cannot change while it is in use."""


class Setting(Generic[T]):
    """An attribute of the Trainer that is one of its settings. Assigning to it checks the value."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, trainer: Trainer | None, owner: type[Any]) -> T:
        if trainer is None:
            raise AttributeError(f"{owner.__name__}.{self.name} is an attribute of objects, not of the class")
        value: T = getattr(trainer.settings, self.name)
        return value

    def __set__(self, trainer: Trainer, value: T) -> None:
        if trainer.run.fit_loop is not None and self.name in FIXED_IN_FIT:
            raise ConfigurationError(f"{self.name}={value!r}: cannot be changed while fit is running. Set it before.")
        settings = attrs.evolve(trainer.settings, **{self.name: value})  # type: ignore[arg-type]
        check_supported(settings, trainer.strategy)
        trainer.settings = settings
        if trainer.run.context is not None:
            trainer.run.context.settings = settings  # what the loops read


OFF: Mapping[str, Any] = {
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
    "num_sanity_val_steps": 0,
}
"""The settings that ``barebones`` turns off, and their values."""

CONTRADICTIONS: Mapping[str, Any] = {
    "log_every_n_steps": None,
    "fast_dev_run": False,
    "detect_anomaly": False,
    "profiler": None,
}
"""Arguments that ask for what ``barebones`` leaves out, and their defaults."""


def without_extras(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that ``barebones`` turns off; empty without it.

    Args:
        given: The arguments of the Trainer, by name.

    Raises:
        WrongTypeError: ``barebones`` is neither true nor false.
        ConfigurationError: An argument asks for what is left out.
    """
    check_flags(barebones=given["barebones"])
    if not given["barebones"]:
        return {}
    for name in (*OFF, *CONTRADICTIONS):
        value, allowed = given[name], (None, OFF[name]) if name in OFF else (CONTRADICTIONS[name],)
        if not any(value is one or (type(value) is type(one) and value == one) for one in allowed):
            raise ConfigurationError(
                f"barebones=True and {name}={value!r}: a barebones run has no checkpoints, logger, progress bar, model "
                "summary, sanity check, profiler or other tools to find errors. Remove one of the two."
            )
    return dict(OFF)


PLUGINS: Mapping[str, type[Any]] = {
    "precision": Precision,
    "checkpoint_io": CheckpointIO,
    "cluster_environment": ClusterEnvironment,
}


def with_plugins(plugins: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for backends, with each of ``plugins`` as the argument of its kind.

    Args:
        plugins: A Precision, CheckpointIO or ClusterEnvironment, or the name of one; or a list of these; or ``None``.
        arguments: The arguments for backends, as the user gave them.

    Raises:
        WrongTypeError: A plugin is of another kind.
        UnknownNameError: No backend of these kinds has the name.
        ConfigurationError: Two plugins are of one kind, or an argument already says what to use.
    """
    found = dict(arguments)
    for plugin in [] if plugins is None else plugins if is_list(plugins) else [plugins]:
        kind = _kind_of_name(plugin) if isinstance(plugin, str) else _kind_of(plugin)
        given = found[kind]
        if not (isinstance(given, str) and given == "auto"):
            where = "plugins" if arguments[kind] is not given else f"{kind}={given!r}"
            raise ConfigurationError(
                f"plugins: {plugin!r} is a {kind}, and {where} has another one, {given!r}. Give one of them."
            )
        found[kind] = plugin
    return found


def _kind_of(plugin: Any) -> str:
    kind = next((kind for kind, base in PLUGINS.items() if isinstance(plugin, base)), None)
    if kind is None:
        raise WrongTypeError(
            f"plugins: {plugin!r} is not a plugin. Pass a Precision, a CheckpointIO or a ClusterEnvironment, or its "
            f"name; accelerator, strategy and callbacks are arguments themselves.{instead_of_class(plugin)}"
        )
    return kind


def _kind_of_name(name: str) -> str:
    registry = Registry.read(own_environ())
    names = {kind: registry.names(kind) for kind in PLUGINS}
    kinds = [kind for kind in PLUGINS if name in names[kind]]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise ConfigurationError(f"plugins: {name!r} is the name of a {' and of a '.join(kinds)}. Pass {kinds[0]}=.")
    other = next((kind for kind in KINDS if kind not in PLUGINS and name in registry.names(kind)), None)
    if other is not None:
        raise UnknownNameError(f"plugins: {name!r} is of another kind. Pass {other}={name!r}.")
    every = sorted({one for known in names.values() for one in known})
    raise UnknownNameError(f"plugins: {name!r} is unknown.{nearest(name, every)} Valid: {quoted(every, near=name)}.")
