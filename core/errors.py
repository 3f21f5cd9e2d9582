"""The one exception family of torch-hal.

Every message names the argument, what was given and what is valid. Each class is also one of Python's own, so
that code which catches ``ValueError`` or ``RuntimeError`` keeps working.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in core/__init__.py: the listing imports this module
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BackendError",
    "CheckpointError",
    "ConfigurationError",
    "CoreError",
    "DeviceError",
    "LaunchError",
    "UnknownNameError",
    "WrongTypeError",
]


class CoreError(Exception):
    """Base of every error that torch-hal raises on purpose."""


class UnknownNameError(CoreError, ValueError):
    """A word that no installed or registered backend of that kind claims."""


class ConfigurationError(CoreError, ValueError):
    """Words that contradict each other, or that the environment contradicts."""


class WrongTypeError(CoreError, TypeError):
    """An object of another kind than the argument takes."""


class DeviceError(CoreError, ValueError):
    """A ``devices=`` value outside the grammar, or devices that are not there."""


class BackendError(CoreError, RuntimeError):
    """A backend that was named but cannot be used: broken, denied, incompatible, in conflict or without hardware."""


class LaunchError(CoreError, RuntimeError):
    """A process of the run could not be started, or one of them failed."""


class CheckpointError(CoreError, RuntimeError):
    """A checkpoint that cannot be written, or is absent, uncommitted or damaged."""


def quoted(words: Iterable[str]) -> str:
    """``'a', 'b', 'c'`` for use in messages; ``none`` where there is nothing."""
    return ", ".join(repr(word) for word in words) or "none"


def nearest(word: str, valid: Iterable[str]) -> str:
    """A sentence naming the valid words closest to ``word``, or an empty string."""
    import difflib

    close = difflib.get_close_matches(word, list(valid), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
