"""The exceptions of torch-hal, one family.

Every message says what was wrong, what was given and what to do. Each class also derives from one of Python's own
exceptions, so that code which catches ``ValueError`` or ``RuntimeError`` keeps working.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in core/__init__.py: the listing imports this module
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = [
    "BackendError",
    "CheckpointError",
    "ConfigurationError",
    "CoreError",
    "DeviceError",
    "LaunchError",
    "UnknownAttributeError",
    "UnknownNameError",
    "WrongTypeError",
    "nearest",
    "quoted",
]


class CoreError(Exception):
    """Base class of every error that torch-hal raises on purpose."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Any message may contain names and exceptions of others.
        super().__init__(*(harmless(each) if isinstance(each, str) else each for each in args), **kwargs)


class UnknownNameError(CoreError, ValueError):
    """No installed or registered backend of that kind has the name."""


class UnknownAttributeError(CoreError, AttributeError):
    """A Runtime or a Trainer has no attribute of that name."""


class ConfigurationError(CoreError, ValueError):
    """Arguments contradict each other or the environment, or a value is not valid."""


class WrongTypeError(CoreError, TypeError):
    """An argument has the wrong type."""


class DeviceError(CoreError, ValueError):
    """``devices=`` has an invalid value, or names devices that do not exist."""


class BackendError(CoreError, RuntimeError):
    """The named backend cannot be used: it is broken, denied, incompatible, in conflict or has no hardware."""


class LaunchError(CoreError, RuntimeError):
    """A process of the run could not be started, or one of them failed."""

    rank: int | None = None
    """The rank of the process that failed, if one did."""
    exit_code: int | None = None
    """Its exit code; the negative number of the signal that killed it."""


class CheckpointError(CoreError, RuntimeError):
    """A checkpoint could not be written, or is missing, uncommitted or damaged."""


LONGEST_TEXT = 20_000
"""Characters that :func:`harmless` keeps."""
LONGEST_NAME = 200
"""Characters of a name that are printed."""


def harmless(text: str, most: int = LONGEST_TEXT, keep: str = "\n\t") -> str:
    """Text of others (metadata, manifests, variables, exceptions), as it is printed.

    Characters that could control a terminal or change the order of the text are written as in Python's source code,
    and the middle of a long text is left out.

    Args:
        text: The text.
        most: How many characters are kept.
        keep: Those characters that stay although they are no printable ones; empty for one line.
    """
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[len(text) - half :]}"
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii") for each in text
    )


LONGEST_LIST = 10
"""Names that :func:`quoted` lists of a long list."""

LONGEST_REASON = 300
"""Characters that :func:`shortened` keeps."""

_CUT = " … (cut; for the whole error: python -m core.list --probe --verbose)"


def shortened(reason: str) -> str:
    """At most 300 characters of ``reason``, for logs and Plans; if it is cut, with the command that shows all of it."""
    reason = harmless(" ".join(reason.split()))
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - len(_CUT)] + _CUT


def quoted(names: Iterable[str], near: str | None = None) -> str:
    """Names for use in a message: ``'a', 'b', 'c'``, or ``none``.

    Args:
        names: The names.
        near: What the user wrote, for names of backends. Of more than ten, only the ten most similar to it are
            listed, with the number of the others and the command that lists them.
    """
    names = list(names)
    rest = len(names) - LONGEST_LIST
    if near is not None and rest > 0:
        import difflib

        similar = sorted(names, key=lambda name: -difflib.SequenceMatcher(None, near, name[:LONGEST_NAME]).ratio())
        return f"{', '.join(map(_short, similar[:LONGEST_LIST]))} and {rest} more (all of them: torch-hal list)"
    return harmless(", ".join(map(_short, names))) or "none"


def _short(name: object) -> str:
    return repr(harmless(name, LONGEST_NAME, "") if isinstance(name, str) and len(name) > LONGEST_NAME else name)


def nearest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str:
    """`` Did you mean 'cpu'?`` with the valid names most similar to ``name``; empty if none is similar.

    Args:
        name: What the user wrote.
        valid: The valid names.
        cutoff: How similar a name must be, from 0 to 1.
    """
    import difflib

    names = {each.lower(): each for each in valid}
    close = difflib.get_close_matches(name.lower(), list(names), n=3, cutoff=cutoff)
    return f" Did you mean {' or '.join(repr(names[each]) for each in close)}?" if close else ""
