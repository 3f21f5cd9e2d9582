"""Checks of arguments: their names, and values that users pass."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from ..errors import LONGEST_LIST, ConfigurationError, WrongTypeError, nearest, quoted
from .attributes import KnownAttributes, method_of
from .remedies import remedies

__all__ = [
    "check_call",
    "check_count",
    "check_flags",
    "check_path",
    "instead_of_class",
    "is_list",
    "is_url",
    "suggest_arguments",
    "suggest_arguments_of",
    "suggest_in_methods",
]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


def is_list(value: Any) -> bool:
    """Whether ``value`` is a list, a tuple, or a sequence of a configuration library, such as Hydra's lists."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def check_count(name: str, value: Any, low: int, optional: bool = False) -> None:
    """Check that ``value`` is an integer ≥ ``low``, or ``None`` if ``optional``.

    Raises:
        ConfigurationError: It is not.
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"{name}={value!r}: must be an integer ≥ {low}{' or None' if optional else ''}.")


def check_flags(of: str = "", /, **flags: Any) -> None:
    """Check that each of ``flags``, arguments by name, is a bool; ``of`` is what a message begins with.

    Raises:
        WrongTypeError: One is not.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise WrongTypeError(f"{of}{name}={value!r}: must be True or False.")


def instead_of_class(given: Any) -> str:
    """What to do with a class that was passed in place of an object; begins with a space, empty for all else."""
    if isinstance(given, type):
        return f" It is a class: create an object of it: {given.__name__}(...)."
    if isinstance(given, partial) and isinstance(given.func, type):
        return f" It is a partial call of a class. Finish it: {given.func.__name__}(...)."
    return ""


def check_call(
    call: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], how: str
) -> None:
    """Check that ``function`` can be called with these arguments, before processes are started for it.

    Args:
        call: What the user called, for the message.
        function: The function that will be called.
        args: With these.
        kwargs: And these.
        how: What the function gets, and how to pass more.

    Raises:
        WrongTypeError: It takes other arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
        none = inspect.Signature.empty
        plain = [each.replace(annotation=none) for each in signature.parameters.values()]
        shown = f"{name}{signature.replace(parameters=plain, return_annotation=none)}"
        raise WrongTypeError(f"{call}: {shown} cannot be called: {error}. {how}") from None


def check_path(name: str, value: Any, optional: bool = True) -> None:
    """Check that ``value`` is a path, or ``None`` if ``optional``.

    Raises:
        WrongTypeError: It is neither.
    """
    if not isinstance(value, str | os.PathLike) and not (optional and value is None):
        raise WrongTypeError(f"{name}={value!r}: must be a path (str or os.PathLike){' or None' if optional else ''}.")


def is_url(path: object) -> bool:
    """Whether ``path`` is a URL of another store than the file systems of this machine."""
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def is_below(path: str, folder: str) -> bool:
    """Whether the path or URL is in ``folder`` or deeper, by its name."""
    if is_url(path) or is_url(folder):
        return path.startswith(f"{folder.rstrip('/')}/") and ".." not in path.split("/")
    return os.path.abspath(path).startswith(os.path.join(os.path.abspath(folder), ""))


def suggest_arguments(method: Callable[P, T], owner: str | None = None) -> Callable[P, T]:
    """Make ``method`` say what to do about an unknown argument, or name the most similar one, and say which it takes.

    Args:
        method: A constructor or a method; one with ``**`` arguments knows all names.
        owner: What users call it, for the message; its qualified name unless given.

    Raises:
        WrongTypeError: In the method, for an unknown argument, one that is missing, or too many.
    """

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:  # costs nothing in a loop, where arguments are checked only after Python has refused the call
            return method(*args, **kwargs)
        except WrongTypeError:
            raise
        except TypeError:
            signature = inspect.signature(method)  # not before: a front end has many methods, and few such calls
            others = list(signature.parameters.values())[1:]
            names = [each.name for each in others if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
            takes_any = any(each.kind is each.VAR_KEYWORD for each in others)
            called = owner or _called(method, args)
            usage = _usage(called, names, method.__module__)
            instead = _remedies(method, args)
            for name in () if takes_any else kwargs:
                if name not in names:
                    remedy = f" {instead[name]}" if name in instead else _of_constructor(name, args)
                    remedy = remedy or nearest(name, names) or usage
                    raise WrongTypeError(f"{called}: unknown argument {name!r}.{remedy}") from None
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                remedy = f" {next(iter(instead.values()))}" if instead and not names else usage
                if len(args) > 1 and isinstance(args[1], dict) and hasattr(args[0], f"{method.__name__}_dict"):
                    remedy = f" For a dict of values: {called}_dict(values)."
                if names and not any(each.kind is each.POSITIONAL_OR_KEYWORD for each in others):
                    remedy = f" Pass each by its name: {called}({names[0]}=...).{remedy}"
                raise WrongTypeError(f"{called}: {error}.{_given(args[1:])}{remedy}") from None
            raise

    return checked


def _remedies(method: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, str]:
    """By argument, what ``remedies.toml`` says of this method, or of a base class's."""
    kind = args[0] if args and isinstance(args[0], type) else type(args[0]) if args else object
    of_method = "" if method.__name__ == "__init__" else f".{method.__name__}"
    owners = (one.__name__ for one in kind.__mro__ if one.__module__.startswith("torch_hal."))
    return remedies("arguments", (f"{owner}{of_method}" for owner in owners))


def _called(method: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The name that users know ``method`` by; a base class may define it."""
    if method.__name__ == "__init__" or not (args and isinstance(args[0], KnownAttributes)):
        return method.__qualname__.removesuffix(".__init__")
    return method_of(args[0], method.__name__)


def _of_constructor(name: str, args: tuple[Any, ...]) -> str:
    """The remedy for an argument passed to a method that the constructor of the front end takes."""
    front_end = type(args[0]) if args and isinstance(args[0], KnownAttributes) else None
    if front_end is None or name not in inspect.signature(front_end).parameters:
        return ""
    return f" Pass it to the constructor: {front_end.__name__}({name}=...)."


def _given(positional: tuple[Any, ...]) -> str:
    shown = [repr(one) if isinstance(one, str | Real | None) else f"a {type(one).__name__}" for one in positional]
    return f" Given: {', '.join(shown)}." if shown else ""


def _usage(called: str, names: list[str], module: str) -> str:
    if len(names) <= LONGEST_LIST:
        return f" Arguments: {quoted(names)}."
    package = "core" if module.startswith("torch_hal.") else ""
    if package and called.split(".")[0] not in sys.modules["torch_hal"].__all__:
        package = f"core.{module.split('.')[1]}"
    return f" All of them: help({package}{'.' * bool(package)}{called})."


def suggest_in_methods(*, leave: Collection[str]) -> Callable[[type[C]], type[C]]:
    """Decorator: let all public methods of a front end, inherited ones too, name the most similar argument.

    Args:
        leave: Methods that a loop calls in each step, which stay as they are.
    """

    def decorate(cls: type[C]) -> type[C]:
        for name in dir(cls):
            method = inspect.getattr_static(cls, name)
            if inspect.isfunction(method) and not name.startswith("_") and name not in leave:
                setattr(cls, name, suggest_arguments(method))
        return cls

    return decorate


def suggest_arguments_of(cls: type[C]) -> type[C]:
    """Let a class that defines its own constructor name the most similar argument."""
    own = vars(cls).get("__init__")
    if own is not None:
        cls.__init__ = suggest_arguments(own)  # type: ignore[method-assign]
    return cls
