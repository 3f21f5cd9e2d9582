"""Checks of what a user's classes define: names and signatures of hooks, and attributes that are the Trainer's."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Mapping
from functools import cached_property
from types import CodeType
from typing import Any, TypeVar

from ..errors import ConfigurationError

METHODS = (
    *("training_step", "validation_step", "test_step", "predict_step"),
    *("training_step_end", "validation_step_end", "test_step_end", "validation_epoch_end", "test_epoch_end"),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "prepare_data"),
    *("configure_optimizers", "configure_model", "configure_callbacks", "configure_gradient_clipping"),
    *("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "transfer_batch_to_device", "load_state_dict"),
)
"""What the Trainer calls besides the ``on_…``, of which all that are unknown are rejected."""
SETTINGS = ("automatic_optimization", "example_input_array", "strict_loading", "prepare_data_per_node")
"""Attributes that the Trainer reads."""
OTHER_WORDS = {"val": "validation", "valid": "validation", "training": "train", "begin": "start"}
"""Parts of the names that hooks have in other libraries, and in other versions of Lightning."""
CLOSE = 0.9
"""How similar a name is that is taken for a misspelt one."""


def check_names(argument: str, given: Any, base: type[Any], own: Mapping[str, Any], called: Collection[str]) -> None:
    """Check that ``given`` has no misspelt method or setting of ``base``.

    Args:
        argument: What the user passed ``given`` as.
        given: A module, a callback or a DataModule.
        base: The class that declares the names.
        own: What :func:`own_names` returned.
        called: What :func:`called_by_itself` returned: these names are not misspelt.

    Raises:
        ConfigurationError: It has one, and not the one that is meant; or something else in place of a method.
    """
    kind = type(given)
    check_methods(argument, given, base)
    methods = [name for name in METHODS if getattr(kind, name, None) is getattr(base, name, None) is not None]
    for name, value in own.items():
        if name in called or not callable(value):
            continue
        hook = _hook_meant(name)
        is_hook = hook is not None and getattr(kind, hook, None) is getattr(base, hook, None) is not None
        if meant := [hook] if is_hook else difflib.get_close_matches(name, methods, n=1, cutoff=CLOSE):
            raise ConfigurationError(
                f"{argument}: {kind.__name__} defines {name!r}, which is never called. Did you mean {meant[0]!r}? If "
                "not, give it another name."
            )
    settings = [name for name in SETTINGS if hasattr(base, name)]
    for name, value in vars(given).items():
        if name not in settings and (meant := difflib.get_close_matches(name, settings, n=1, cutoff=CLOSE)):
            raise ConfigurationError(
                f"{argument}: {kind.__name__} has the attribute {name}={value!r:.50}, which is never read. Did you "
                f"mean {meant[0]!r}? If not, give it another name."
            )


def _hook_meant(name: str) -> str | None:
    """The hook or step that a method with the name of another version may be: of ``val_end`` ``on_validation_end``."""
    words = name.split("_")
    if words[-1] == "step":
        return "_".join(OTHER_WORDS.get(word, word) for word in words)
    if words[-1] in ("begin", "start", "end"):
        return "_".join(["on", *(OTHER_WORDS.get(word, word) for word in words)])
    return None


def check_methods(argument: str, given: Any, base: type[Any]) -> None:
    """Check that the methods of ``base`` are methods of ``given``; ``None`` in place of one removes it.

    Raises:
        ConfigurationError: An attribute with the name of a method, such as ``self.log = []``, hides it.
    """
    for name in dir(base):
        declared = inspect.getattr_static(base, name)
        if name.startswith("_") or not inspect.isfunction(declared):
            continue
        found = inspect.getattr_static(given, name, None)
        is_property = isinstance(found, property | cached_property)
        if found is None or callable(found) or (hasattr(type(found), "__get__") and not is_property):
            continue
        what = "a property" if is_property else f"{found!r:.50} of type {type(found).__name__}"
        raise ConfigurationError(
            f"{argument}: {type(given).__name__}.{name} is {what}, which hides the method {name}(). If it is meant as "
            f"that method, define it: def {name}(self, ...). Otherwise use another name."
        )


def own_names(given: Any, base: type[Any]) -> dict[str, Any]:
    """What the user's classes define publicly and ``base`` does not have, by name."""
    found = {name: value for kind in reversed(_own_classes(given, base)) for name, value in vars(kind).items()}
    return {name: value for name, value in found.items() if not name.startswith("_") and not hasattr(base, name)}


def called_by_itself(given: Any, base: type[Any]) -> set[str]:
    """The names that the user's classes use in methods of other names: these may call what the Trainer does not."""
    used: set[str] = set()
    for kind in _own_classes(given, base):
        for method, value in vars(kind).items():
            code = getattr(getattr(value, "__func__", value), "__code__", None)
            used |= _names_in(code) - {method} if isinstance(code, CodeType) else set()
    return used


def _names_in(code: CodeType) -> set[str]:
    """The names of attributes and globals that a function uses, and those in it."""
    return {*code.co_names}.union(*(_names_in(each) for each in code.co_consts if isinstance(each, CodeType)))


def _own_classes(given: Any, base: type[Any]) -> list[type[Any]]:
    """The classes of ``given`` that are the user's, the most derived first."""
    return [
        kind
        for kind in type(given).__mro__
        if kind not in base.__mro__ and not kind.__module__.startswith("torch_hal.")
    ]


def similar_methods(name: str, given: Any, base: type[Any]) -> str:
    """`` It defines 'train_step': …`` if a method of the user's may be meant as ``name``; otherwise empty."""
    methods = [own for own, value in own_names(given, base).items() if callable(value)]
    close = difflib.get_close_matches(name, methods, n=1, cutoff=0.65)
    return f" It defines {close[0]!r}: rename it to {name!r}, if that is what it is." if close else ""


_OTHERS = (
    *("setup", "teardown", "prepare_data", "configure_optimizers", "configure_callbacks", "configure_model"),
    *("configure_gradient_clipping", "lr_scheduler_step", "optimizer_step", "optimizer_zero_grad"),
    *("training_epoch_end", "validation_epoch_end", "test_epoch_end"),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "state_dict"),
)
"""What the Trainer calls besides the ``on_…``. Steps may leave out an argument; they are checked elsewhere."""


def check_signatures(argument: str, given: Any, base: type[Any]) -> None:
    """Check that each hook that ``given`` overrides takes the arguments of the one in ``base``.

    Raises:
        ConfigurationError: A hook cannot be called.
    """
    kind = type(given)
    for name in dir(base):
        declared, own = getattr(base, name), getattr(kind, name, None)
        if not (name.startswith("on_") or name in _OTHERS) or own in (None, declared) or not callable(declared):
            continue
        parameters = list(inspect.signature(declared).parameters.values())[1:]
        arguments = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        hook = getattr(given, name, None)
        if len(arguments) != len(parameters) or not callable(hook):
            continue
        try:
            signature = inspect.signature(hook)
        except ValueError:  # not every callable has one
            continue
        _check_call(f"{argument}: {kind.__name__}.{name}", signature, name, arguments)


def _check_call(subject: str, signature: inspect.Signature, name: str, arguments: list[str]) -> None:
    # The number of the loader is passed by name, and only to hooks of evaluation that have it.
    is_evaluation = name.endswith(("_batch_start", "_batch_end")) and not name.startswith("on_train_")
    own = {"dataloader_idx": 0} if "dataloader_idx" in signature.parameters and is_evaluation else {}
    given = [each for each in arguments if each != "dataloader_idx" or not is_evaluation]
    try:
        signature.bind(*given, **own)
    except TypeError as error:
        raise ConfigurationError(
            f"{subject}{signature} is called with ({', '.join(given)}): {error}. Define it as "
            f"{name}({', '.join(['self', *arguments])})."
        ) from None


C = TypeVar("C")

_COUNTER = "It says where the run is. Use another name for a counter of your own."
_RANK = "It is the number of this process, which the launcher tells. Remove the line."
_LOGGER = "It is the Trainer's. Set Trainer(logger=...), or use another name for an object of your own."
_HPARAMS = "Call self.save_hyperparameters(...) with them."
REMEDIES = {
    "device": "It is where the parameters are: the strategy moves them. Remove the line, or use another name.",
    "dtype": "It is that of the parameters. Set precision= of the Trainer, or use another name.",
    "current_epoch": _COUNTER,
    "global_step": _COUNTER,
    "global_rank": _RANK,
    "local_rank": _RANK,
    "logger": _LOGGER,
    "loggers": _LOGGER,
    "hparams": _HPARAMS,
    "hparams_initial": _HPARAMS,
}
"""For each property that cannot be assigned: what to do."""


def refuse_assignments(cls: type[C]) -> type[C]:
    """Decorator: let the properties of ``cls`` that cannot be assigned say so, and what to do instead."""
    for name, remedy in REMEDIES.items():
        found = inspect.getattr_static(cls, name, None)
        if isinstance(found, property):
            setattr(cls, name, found.setter(_refusing(name, remedy)))
    return cls


def _refusing(name: str, remedy: str) -> Any:
    def refuse(self: Any, value: Any) -> None:
        raise ConfigurationError(f"{type(self).__name__}.{name} = {value!r:.80}: cannot be assigned. {remedy}")

    return refuse
