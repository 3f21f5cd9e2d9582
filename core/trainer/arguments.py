"""Checking what a Trainer is given."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from core.errors import ConfigurationError, WrongTypeError, quoted
from core.trainer.checkpointing import ModelCheckpoint
from core.trainer.hooks import Callback
from core.trainer.module import Module
from core.trainer.progress import ProgressBar

__all__ = ["all_callbacks", "all_loggers", "check_clip_value", "check_count", "check_loader", "check_module"]


def check_count(name: str, value: Any, low: int, optional: bool = False) -> None:
    """Refuse what is no whole number from ``low``, nor ``None`` where that is ``optional``."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        valid = f"a whole number from {low}" + (", or None" if optional else "")
        raise ConfigurationError(f"{name}={value!r}: not a number of them. Valid: {valid}.")


def check_clip_value(value: Any) -> None:
    """Refuse what is neither a number above 0 nor ``None``."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
        raise ConfigurationError(f"gradient_clip_val={value!r}: no limit. Valid: a number above 0, or None.")


def check_module(module: Any, *steps: str) -> None:
    """Refuse what is no Module, or one that does not define ``steps``."""
    if not isinstance(module, Module):
        raise WrongTypeError(f"module: given {type(module).__name__}. Valid: a core.Module.")
    missing = [step for step in steps if getattr(type(module), step) is getattr(Module, step)]
    if missing:
        raise ConfigurationError(f"module: {type(module).__name__} does not define {quoted(missing)}.")


def check_loader(name: str, loader: Any) -> None:
    """Refuse what gives no batches, and several loaders at once."""
    several = isinstance(loader, list | tuple) and any(isinstance(item, DataLoader) for item in loader)
    if several or not hasattr(loader, "__iter__"):
        given = "several loaders" if several else type(loader).__name__
        raise WrongTypeError(f"{name}: given {given}. Valid: one torch DataLoader, or an iterable of batches.")


def all_loggers(given: Any) -> list[Any]:
    """The loggers in what the user gave.

    Raises:
        WrongTypeError: One of them is none.
    """
    loggers = _as_list(given)
    for logger in loggers:
        if not callable(getattr(logger, "log_metrics", None)) or isinstance(logger, type):
            raise WrongTypeError(f"logger: given {logger!r}. Valid: objects with log_metrics(metrics, step).")
    return loggers


def all_callbacks(given: Any, enable_progress_bar: bool | None, enable_checkpointing: bool) -> list[Callback]:
    """The user's callbacks and those that are added, in the order in which they are called.

    Raises:
        WrongTypeError: One of them is none.
        ConfigurationError: One is given that is also ruled out, or cannot be had.
    """
    callbacks = _as_list(given)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise WrongTypeError(
                f"callbacks: given {callback!r}. Valid: objects of classes derived from core.Callback."
            )
    kinds: tuple[tuple[type[Callback], str, bool | None], ...] = (
        (ProgressBar, "enable_progress_bar", enable_progress_bar),
        (ModelCheckpoint, "enable_checkpointing", enable_checkpointing),
    )
    for kind, name, wanted in kinds:
        is_there = any(isinstance(callback, kind) for callback in callbacks)
        if is_there and wanted is False:
            raise ConfigurationError(
                f"{name}=False: a {kind.__name__} is among the callbacks. Valid: one or the other."
            )
        if not is_there and (ProgressBar.is_available() if wanted is None else wanted):
            callbacks.append(kind())
    return sorted(callbacks, key=lambda callback: isinstance(callback, ModelCheckpoint))


def _as_list(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
