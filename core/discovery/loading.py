"""Importing what a spec or an entry point names: ``"package.module:attribute"``."""

from __future__ import annotations

import importlib

from ..errors import BackendError, CoreError, nearest
from ..kinds import KINDS, Kind

TYPE_CHECKING = False  # detection imports this module, and little else
if TYPE_CHECKING:
    from typing import Any

    from ..specs import BackendSpec


def import_target(target: str) -> Any:
    """The object that ``"package.module:attribute"`` names.

    Raises:
        BackendError: The module cannot be imported, or has no such attribute; ``__cause__`` has the reason.
    """
    module_name, _, path = target.partition(":")
    try:
        found = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a plugin may raise anything; it is the cause shown
        raise BackendError(f"{target!r} cannot be imported: {describe(error)}") from error
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            near = nearest(attribute, [name for name in dir(found) if not name.startswith("_")])
            raise BackendError(f"{target!r} does not exist: {describe(error)}.{near}") from error
        except (Exception, SystemExit) as error:  # a lazy module imports more at this point
            raise BackendError(f"{target!r} cannot be imported: {describe(error)}") from error
    return found


def load(spec: BackendSpec, origin: str = "") -> type[Any]:
    """The class that ``spec`` describes.

    Args:
        spec: The backend's description.
        origin: The distribution that it comes from, for messages.

    Raises:
        BackendError: The target cannot be imported, or is not a subclass of its kind's base class.
    """
    try:
        return load_target(spec)
    except BackendError as error:
        subject = f"{spec.kind} {spec.name!r}" + (f" of {origin}" if origin else "")
        raise BackendError(f"{subject} is broken: {error}") from error.__cause__


def load_target(spec: BackendSpec) -> type[Any]:
    """Like :func:`load`, but errors do not name the backend."""
    target = spec.target
    if isinstance(target, str):
        try:
            target = import_target(target)
        except BackendError as error:
            raise BackendError(f"its target {error}") from error.__cause__
    return check_class(target, target_name(spec.target), KINDS[spec.kind])


def check_class(target: Any, name: str, kind: Kind) -> type[Any]:
    """``target``, if it is a class of that kind.

    Args:
        target: What was imported.
        name: Its ``"module:Class"``, for messages.
        kind: The kind, whose base class it derives from.

    Raises:
        BackendError: It is not, or lacks a method.
    """
    base = import_target(kind.base)
    if not isinstance(target, type) or not issubclass(target, base):
        given = "" if isinstance(target, type) else f" but an object of type {type(target).__name__}"
        raise BackendError(
            f"its target {name!r} is not a subclass of {base.__module__}.{base.__qualname__}{given}. Set target to "
            "such a class."
        )
    missing = sorted(getattr(target, "__abstractmethods__", ()))
    if missing:
        raise BackendError(f"its target {name!r} does not define {', '.join(missing)}.")
    return target


def target_name(target: Any) -> str:
    """``"module:Class"`` of a spec's target, which is this string or the class."""
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def describe(error: BaseException) -> str:
    """An exception on one line: its type and message, and those of its ``__cause__``."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if error.__cause__ is None else f"{text} (from {describe(error.__cause__)})"


def trace(error: BaseException) -> str:
    """The traceback of what a plugin raised, without the frames that led to the plugin; empty for core's own errors."""
    import traceback

    cause = error.__cause__ if isinstance(error, CoreError) else error
    if cause is None:
        return ""
    frame = cause.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith(_FRAMES_OF_CORE):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(cause), cause, frame))


_FRAMES_OF_CORE = ("torch_hal.discovery", "importlib", "pluggy")
