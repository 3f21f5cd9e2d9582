"""Checking what a Trainer is given."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from core.errors import ConfigurationError, WrongTypeError, nearest, quoted
from core.trainer.checkpointing import ModelCheckpoint
from core.trainer.hooks import Callback
from core.trainer.module import Module
from core.trainer.progress import ProgressBar

__all__ = ["all_callbacks", "all_loggers", "check_loader", "check_module", "check_predicts"]


def check_module(module: Any, *steps: str) -> None:
    """Refuse what is no Module, or one that does not define ``steps``, or defines what nobody calls."""
    if not isinstance(module, Module):
        raise WrongTypeError(f"module: given {type(module).__name__}. Valid: a core.Module.")
    _check_hooks("module", module, Module)
    missing = [step for step in steps if getattr(type(module), step) is getattr(Module, step)]
    if missing:
        raise ConfigurationError(f"module: {type(module).__name__} does not define {quoted(missing)}.")


def check_predicts(module: Any) -> None:
    """Refuse what is no Module, or one that defines neither ``predict_step`` nor ``forward``, which that calls."""
    check_module(module)
    forward = getattr(module.forward, "__func__", module.forward)
    if type(module).predict_step is Module.predict_step and forward is Module.forward:
        raise ConfigurationError(f"module: {type(module).__name__} defines neither 'predict_step' nor 'forward'.")


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
        ConfigurationError: One is given that is also ruled out, cannot be had, or defines a hook that there is not.
    """
    callbacks = _as_list(given)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise WrongTypeError(
                f"callbacks: given {callback!r}. Valid: objects of classes derived from core.Callback."
            )
        _check_hooks("callbacks", callback, Callback)
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


def _check_hooks(name: str, given: Any, base: type[Any]) -> None:
    """Refuse a method that looks like a hook and is none of ``base``'s, since nobody would ever call it."""
    hooks, methods = (
        [word for word in dir(kind) if word.startswith("on_") and callable(getattr(kind, word))]
        for kind in (base, type(given))
    )
    for word in sorted(set(methods) - set(hooks)):
        raise ConfigurationError(
            f"{name}: {type(given).__name__} defines {word!r}, which is no hook. Valid: {quoted(hooks)}; a method that "
            f"is to be none must not begin with 'on_'.{nearest(word, hooks)}"
        )


def _as_list(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
