"""Hyperparameters: the arguments of a Module's or DataModule's constructor, kept in checkpoints and sent to loggers.

And ``load_from_checkpoint``, which calls a constructor with those in a checkpoint.
"""

from __future__ import annotations

import ast
import copy
import csv
import dataclasses
import importlib.util
import inspect
import json
import logging
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ...checkpoints import absolute
from ...checkpoints.checksums import tensors_in_files
from ...checkpoints.foreign import load_any, load_whole
from ...checkpoints.safe_unpickling import refuse_unreadable
from ...errors import (
    BackendError,
    CheckpointError,
    ConfigurationError,
    UnknownAttributeError,
    WrongTypeError,
    nearest,
    quoted,
)
from ...hints.argument_checks import check_path, suggest_arguments
from ...utilities.nested import map_tensors

logger = logging.getLogger(__name__)

T = TypeVar("T")


class AttributeDict(dict[str, Any]):
    """A dict whose items are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = nearest(name, list(self)) or f" Saved: {quoted(self)}."
            raise UnknownAttributeError(
                f"hparams: there is no hyperparameter {name!r}.{known} Call self.save_hyperparameters() in __init__."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"there is no hyperparameter {name!r}") from None

    def __repr__(self) -> str:
        return "\n".join(f'"{name}": {value}' for name, value in sorted(self.items(), key=lambda item: str(item[0])))


class HyperParameters:
    """The part that Module and DataModule share: :meth:`save_hyperparameters` and :attr:`hparams`."""

    _hparams: AttributeDict | None = None
    _hparams_initial: AttributeDict | None = None
    _hparams_name: str | None = None
    """The argument of the constructor that took all of the hyperparameters as one object."""
    _logs_hyperparameters: bool = False

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: str | Sequence[str] | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments of the constructor as :attr:`hparams`; call it in ``__init__``.

        They are written into checkpoints, so that ``load_from_checkpoint`` can create the object without them, and
        sent to the loggers. If a base class calls this, the arguments of the subclass are kept as well. Call it before
        ``__init__`` assigns to an argument: the values are those at the call.

        Args:
            *args: Names of arguments, if not all; or one object that holds all hyperparameters: a mapping, an argparse
                namespace or a dataclass.
            ignore: Names of arguments to leave out.
            frame: The frame of the constructor; the caller's by default.
            logger: Whether to send them to the loggers.

        Raises:
            ConfigurationError: There is no argument of a name.
            WrongTypeError: An object holds no named values.
        """
        caller = frame
        if caller is None:
            current = inspect.currentframe()
            caller = None if current is None else current.f_back
        given, unnamed = ({}, {}) if caller is None else _constructor_arguments(self, caller)
        left_out = [ignore] if isinstance(ignore, str) else list(ignore or ())
        owner: Any = self
        if dataclasses.is_dataclass(owner) and not given:  # its __init__ has ended when __post_init__ calls this
            given = {field.name: getattr(owner, field.name) for field in dataclasses.fields(owner) if field.init}
        for name in left_out:
            given.pop(name, None)
        if all(isinstance(item, str) for item in args):
            chosen = _named(self, args, given) if args else given
        elif len(args) == 1:
            chosen = _content(args[0])
            self._hparams_name = next((name for name, value in given.items() if value is args[0]), None)
        else:
            raise WrongTypeError(
                f"save_hyperparameters: {args!r} must be names of arguments, or one object with all hyperparameters."
            )
        self._logs_hyperparameters = logger
        self.hparams.update(chosen)
        if not args:
            _warn_of_unnamed(self, {name: values for name, values in unnamed.items() if name not in left_out})
        for name in left_out:
            self.hparams.pop(name, None)
        self._hparams_initial = _copied(self.hparams)

    @property
    def hparams(self) -> AttributeDict:
        """The hyperparameters; items may be read as attributes, and changed."""
        if self._hparams is None:
            self._hparams = AttributeDict()
        return self._hparams

    @property
    def hparams_initial(self) -> AttributeDict:
        """A copy of the hyperparameters as they were saved."""
        return AttributeDict() if self._hparams_initial is None else _copied(self._hparams_initial)


def saved_hyperparameters(owner: HyperParameters) -> dict[str, Any]:
    """The hyperparameters as plain data for a checkpoint; what could not be read back is left out, with a warning."""
    plain, left_out = {}, []
    for name, value in (owner._hparams or {}).items():
        value = _plain(value)
        try:
            refuse_unreadable(value)
        except CheckpointError:
            left_out.append(name)
        else:
            plain[name] = value
    if left_out and left_out != getattr(owner, "_hparams_left_out", None):
        owner.__dict__["_hparams_left_out"] = left_out  # warn once, not with each checkpoint
        logger.warning(
            "%s: the hyperparameters %s are not in the checkpoint, since torch.load(weights_only=True) could not read "
            "them. Pass them to load_from_checkpoint, or leave them out: save_hyperparameters(ignore=%r)",
            type(owner).__name__,
            quoted(left_out),
            left_out,
        )
    return plain


def hyperparameters_of(module: HyperParameters, datamodule: HyperParameters | None) -> dict[str, Any]:
    """The parts of a checkpoint that ``load_from_checkpoint`` reads, by key."""
    parts: dict[str, Any] = {}
    for owner, prefix in ((module, ""), (datamodule, "datamodule_")):
        if owner is not None and owner._hparams:
            parts[f"{prefix}hyper_parameters"] = saved_hyperparameters(owner)
            if owner._hparams_name is not None:
                parts[f"{prefix}hparams_name"] = owner._hparams_name
    return parts


def merged_hyperparameters(module: Any, datamodule: Any) -> dict[str, Any] | None:
    """What loggers get: the hyperparameters of the Module and the DataModule; ``None`` if neither has saved any.

    Raises:
        ConfigurationError: Both have one of the same name with different values.
    """
    sources = [
        owner.hparams_initial
        for owner in (module, datamodule)
        if getattr(owner, "_logs_hyperparameters", False) and owner._hparams_initial is not None
    ]
    if not sources:
        return None
    if len(sources) == 2:
        first, second = sources
        differing = [name for name in first.keys() & second.keys() if not _same(first[name], second[name])]
        if differing:
            raise ConfigurationError(
                f"save_hyperparameters: the Module and the DataModule have different values for "
                f"{quoted(sorted(map(str, differing)))}. Rename them in one of the two, or pass logger=False to its "
                "save_hyperparameters."
            )
    return {name: value for source in sources for name, value in source.items()}


def _constructor_arguments(owner: Any, frame: FrameType) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """The arguments of ``owner``'s constructors that are running: those of subclasses count, base classes' too.

    And those without a name, by the name of what takes them, such as ``args``.
    """
    found: dict[str, Any] = {}
    unnamed: dict[str, tuple[Any, ...]] = {}
    for running in _outwards(frame):
        code = running.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if code.co_name != "__init__" or not names or running.f_locals.get(names[0]) is not owner:
            continue
        values = {name: running.f_locals[name] for name in names[1:] if name in running.f_locals}
        if code.co_flags & inspect.CO_VARARGS:
            name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
            unnamed[name] = (*unnamed.get(name, ()), *running.f_locals.get(name, ()))
        if code.co_flags & inspect.CO_VARKEYWORDS:
            position = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
            values |= running.f_locals.get(code.co_varnames[position], {})
        found |= values  # the outer frame is the subclass's
    return found, unnamed


def _warn_of_unnamed(owner: HyperParameters, unnamed: Mapping[str, Sequence[Any]]) -> None:
    """Warn of arguments in ``*args`` that are not a further constructor's argument with a name."""
    saved = list(owner.hparams.values())
    for name, values in unnamed.items():
        lost = [value for value in values if all(value is not other for other in saved)]
        if lost:
            logger.warning(
                "save_hyperparameters: %d argument(s) in *%s of %s have no name, so they are not saved, and "
                "load_from_checkpoint will create the object without them. Take them as one argument that is a list, "
                "or leave them out: save_hyperparameters(ignore=[%r])",
                len(lost),
                name,
                type(owner).__name__,
                name,
            )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _named(owner: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    for name in names:
        if name not in given:
            raise ConfigurationError(
                f"save_hyperparameters({name!r}): {type(owner).__name__}.__init__ has no argument {name!r}."
                f"{nearest(name, list(given))} Arguments: {quoted(given)}."
            )
    return {name: given[name] for name in names}


def _content(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, Namespace):
        return dict(vars(given))
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    raise WrongTypeError(
        f"save_hyperparameters: {given!r} of type {type(given).__name__} holds no named values. Pass names of "
        "arguments, a mapping, an argparse.Namespace or a dataclass."
    )


def _copied(values: AttributeDict) -> AttributeDict:
    """A deep copy; values that cannot be copied are shared."""
    result = AttributeDict()
    for name, value in values.items():
        try:
            result[name] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - whatever an object raises that does not let itself be copied
            result[name] = value
    return result


def _plain(value: Any) -> Any:
    """``value`` with mappings of any kind as dicts."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors of several elements
        return False


def read_hparams(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The hyperparameters in ``hparams.yaml``, ``hparams.json``, or a CSV file with the columns ``key`` and ``value``.

    Raises:
        BackendError: It is YAML, and PyYAML is not installed.
        CheckpointError: The file cannot be read, or holds no mapping.
        ConfigurationError: It is of another kind.
    """
    check_path("hparams_file", path)
    place = Path(path).expanduser()
    kind = place.suffix.lower()
    if kind not in (".yaml", ".yml", ".json", ".csv"):
        raise ConfigurationError(f"hparams_file={os.fspath(path)!r}: must end with .yaml, .yml, .json or .csv.")
    try:
        text = place.read_text("utf-8")
        found = _parsed(kind, text)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"hparams_file={os.fspath(path)!r}: could not be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"hparams_file={os.fspath(path)!r}: holds a {type(found).__name__}, not a mapping.")
    return found


def _parsed(kind: str, text: str) -> Any:
    if kind == ".json":
        return json.loads(text)
    if kind == ".csv":
        return {row["key"]: _literal(row["value"]) for row in csv.DictReader(text.splitlines())}
    if importlib.util.find_spec("yaml") is None:
        raise BackendError("hparams_file: the package 'yaml' is not installed. Run: pip install pyyaml")
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# -- load_from_checkpoint ----------------------------------------------------------------------------------------------


class ClassOnly:
    """A class method that returns an object of its class. Calling it on one is an error: it would not change it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, owner: Any, kind: type[T]) -> Callable[..., T]:
        if owner is None:
            called = f"{kind.__name__}.{self._function.__name__}"
            return suggest_arguments(self._function, owner=called).__get__(kind)  # type: ignore[no-any-return]
        name = self._function.__name__

        def refuse(*args: Any, **kwargs: Any) -> T:
            raise ConfigurationError(
                f"{name}: called on an object, which it would not change. Call it on the class, and use the object "
                f"that it returns: module = {kind.__name__}.{name}(path)."
            )

        return refuse


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
    """The content of a checkpoint with whole tensors: of core's formats, or what another library has written.

    Its tensors may be parts of the file: whoever keeps one copies it.

    Raises:
        CheckpointError: It is absent, damaged, or holds objects other than tensors and plain data.
        WrongTypeError: ``path`` is not a path.
    """
    check_path("checkpoint_path", path)
    place = absolute(path)
    with tensors_in_files():
        loaded = load_any(lambda: load_whole(place), place, weights_only=True)
    return loaded if map_location is None else _mapped(loaded, map_location)


def _mapped(loaded: dict[str, Any], map_location: Any) -> dict[str, Any]:
    if callable(map_location):
        moved: dict[str, Any] = map_tensors(lambda tensor: map_location(tensor, str(tensor.device)), loaded)
        return moved
    target = map_location.get("cpu", "cpu") if isinstance(map_location, Mapping) else map_location
    return dict(map_tensors(lambda tensor: tensor.to(target), loaded))


def create_from_checkpoint(kind: Callable[..., T], saved: Mapping[str, Any], name: str | None, given: Any) -> T:
    """``kind(...)`` with the hyperparameters in a checkpoint, and those in ``given`` in their place.

    Args:
        kind: The class.
        saved: The hyperparameters.
        name: The argument that takes all of them as one object; ``None`` if each is an argument.
        given: The user's own arguments.

    Raises:
        ConfigurationError: The constructor needs an argument that is in neither.
        WrongTypeError: It does not have one of the user's arguments.
    """
    parameters = inspect.signature(kind).parameters
    # Where hyperparameters are keyword arguments, Lightning saves the name "kwargs"; LightningCLI saves "_instantiator"
    # with them.
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    saved = {key: value for key, value in saved.items() if key != "_instantiator"}
    if name is not None and name in parameters and name not in given and not (takes_any and name == "kwargs"):
        own = {key: value for key, value in given.items() if key in parameters}
        content = {**saved, **{key: value for key, value in given.items() if key not in parameters}}
        arguments = {name: AttributeDict(content), **own}
    else:
        unknown = [key for key in given if not takes_any and key not in parameters]
        if unknown:
            raise WrongTypeError(
                f"load_from_checkpoint: unknown argument {unknown[0]!r}.{nearest(unknown[0], parameters)} Arguments of "
                f"{getattr(kind, '__name__', kind)}: {quoted(parameters)}."
            )
        arguments = {key: value for key, value in saved.items() if takes_any or key in parameters} | given
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and parameter.name not in arguments
    ]
    if needed:
        raise ConfigurationError(
            f"load_from_checkpoint: {getattr(kind, '__name__', kind)} needs the arguments {needed}, which are not in "
            f"the checkpoint. Pass them: load_from_checkpoint(path, {needed[0]}=...); or call "
            "self.save_hyperparameters() in __init__ before training."
        )
    return kind(**arguments)
