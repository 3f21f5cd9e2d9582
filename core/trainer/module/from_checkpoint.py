"""``load_from_checkpoint``: a Module or DataModule from a checkpoint that a Trainer has written."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...checkpoints import absolute
from ...checkpoints.foreign import load_any, load_whole
from ...errors import ConfigurationError, WrongTypeError, nearest, quoted
from ...hints.argument_checks import check_path, suggest_arguments
from ...utilities.nested import map_tensors
from .hparams import AttributeDict

T = TypeVar("T")


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

    Raises:
        CheckpointError: It is absent, damaged, or holds objects other than tensors and plain data.
        WrongTypeError: ``path`` is not a path.
    """
    check_path("checkpoint_path", path)
    place = absolute(path)
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
