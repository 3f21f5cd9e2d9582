"""Checks of the objects that a Trainer is given: modules, loaders, loggers and callbacks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset

from ..callbacks.base import Callback, Checkpoint
from ..callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from ..callbacks.display.model_summary import ModelSummary
from ..callbacks.display.progress_bar import ProgressBar, ProgressLines
from ..callbacks.foreign_callbacks import AdaptedCallback, adapted
from ..callbacks.timer import Timer
from ..data import CombinedLoader, is_collection
from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import instead_of_class, is_list
from ..hints.remedies import change_import, remedies
from ..runtime.checks import uninitialized
from ..strategies.base import Strategy
from ..utilities.torch_private import is_initialized
from .member_checks import called_by_itself, check_names, check_signatures, own_names, similar_methods
from .module.hooks import overridden
from .module.module import CUSTOM_STEP, Module
from .module.plain_module import PlainModule
from .settings import Settings


def check_module(module: Any, *steps: str) -> None:
    """Check that ``module`` is a Module that defines ``steps``, and no hook that does not exist.

    Raises:
        WrongTypeError: It is not a Module.
        ConfigurationError: It lacks a step, or defines an unknown hook.
    """
    if not isinstance(module, Module):
        raise WrongTypeError(
            f"model: must be a core.Module or a torch.nn.Module, not {described(module)}.{_remedy(module)}"
        )
    if not is_initialized(module):
        raise uninitialized("module", module)
    own = module.user_module if isinstance(module, PlainModule) else module
    if getattr(own, "_core_inner", None) is not None:
        raise WrongTypeError(
            f"model: the {type(own).__name__} was prepared by a Runtime. The Trainer prepares it itself: pass the "
            "module that you passed to prepare, or runtime.unwrap_model(model)."
        )
    check_hooks("module", own, Module)
    check_steps(module, *steps)


def check_steps(module: Module, *steps: str) -> None:
    """Check that ``module`` defines ``steps``.

    Raises:
        ConfigurationError: It lacks one.
    """
    missing = [step for step in steps if overridden(module, Module, step) is None]
    if missing:
        own = module.user_module if isinstance(module, PlainModule) else module
        remedy = similar_methods(missing[0], own, Module) or _define(missing, own)
        raise ConfigurationError(f"module: {type(own).__name__} does not define {quoted(missing)}.{remedy}")


def check_optimization(module: Module, settings: Settings, strategy: Strategy) -> None:
    """Check that nothing has no effect with manual optimization, and that the strategy supports it.

    Raises:
        ConfigurationError: A setting or an overridden method is for automatic optimization, or the strategy runs the
            whole step.
    """
    if not isinstance(module.automatic_optimization, bool):
        raise WrongTypeError(f"module: automatic_optimization={module.automatic_optimization!r}: must be a bool.")
    if module.automatic_optimization:
        return
    name = type(module).__name__
    if settings.accumulate_grad_batches != 1:
        raise ConfigurationError(
            f"accumulate_grad_batches={settings.accumulate_grad_batches}: {name} has automatic_optimization=False and "
            "steps by itself. Remove it, and call optimizer.step() every so many batches."
        )
    if settings.gradient_clip_val is not None:
        raise ConfigurationError(
            f"gradient_clip_val={settings.gradient_clip_val!r}: {name} has automatic_optimization=False and steps by "
            "itself. Remove it, and call self.clip_gradients(optimizer, gradient_clip_val=...) before the step."
        )
    parts = (*CUSTOM_STEP, "lr_scheduler_step", "on_before_zero_grad")
    names = [part for part in parts if overridden(module, Module, part) is not None]
    if names:
        raise ConfigurationError(
            f"module: {name} overrides {quoted(names)}, which the Trainer calls only if it steps the optimizer, and "
            "has automatic_optimization=False. Remove one of the two."
        )
    if not (strategy.supports_custom_loop and strategy.supports_manual_optimization):
        raise ConfigurationError(
            f"strategy={strategy.name!r} does not support manual optimization, which {name} asks for with "
            "automatic_optimization=False. "
            + (strategy.manual_remedy or "Use another strategy, such as 'ddp' or 'fsdp'.")
        )


def check_predicts(module: Any) -> None:
    """Check that ``module`` is a Module that defines ``predict_step`` or ``forward``, which it calls by default.

    Raises:
        WrongTypeError: It is not a Module.
        ConfigurationError: It defines neither, or an unknown hook.
    """
    check_module(module)
    if all(overridden(module, Module, name) is None for name in ("predict_step", "forward")):
        raise ConfigurationError(
            f"module: {type(module).__name__} defines neither 'predict_step' nor 'forward'. Define one of them: "
            "predict_step(self, batch, batch_idx) or forward(self, batch)."
        )


def check_weights_only(weights_only: Any) -> None:
    """Reject what would let a checkpoint run code.

    Raises:
        ConfigurationError: It is ``False``.
        WrongTypeError: It is neither true, false nor ``None``.
    """
    if weights_only is not None and not isinstance(weights_only, bool):
        raise WrongTypeError(f"weights_only={weights_only!r}: must be True or None.")
    if weights_only is False:
        raise ConfigurationError(
            "weights_only=False: a checkpoint that is read so can run any code, so it is always read with "
            "weights_only=True. Remove the argument; keep only tensors, numbers, text and containers in checkpoints."
        )


def check_loader(name: str, loader: Any) -> None:
    """Check that ``loader`` is an iterable of batches, or a dict, list or tuple of such.

    Raises:
        WrongTypeError: It cannot be iterated over.
        ConfigurationError: It has no loader.
    """
    if is_collection(loader):
        CombinedLoader(loader)
    elif isinstance(loader, list | tuple) and loader and is_data_set(loader[0]):
        raise WrongTypeError(
            f"{name}: a {type(loader).__name__} with an object of type {type(loader[0]).__name__}, a data set. Make a "
            "loader of each: DataLoader(dataset, batch_size=...)."
        )
    elif isinstance(loader, Tensor):
        raise WrongTypeError(
            f"{name}: a tensor of shape {tuple(loader.shape)}, whose rows are no batches. Make a loader of it: "
            "DataLoader(TensorDataset(inputs, targets), batch_size=...)."
        )
    elif isinstance(loader, type | str | bytes) or not hasattr(loader, "__iter__"):
        raise WrongTypeError(
            f"{name}: must be a torch DataLoader, an iterable of batches, or a dict or list of these, not "
            f"{described(loader)}.{_loader_instead(loader)}"
        )


def _loader_instead(given: Any) -> str:
    """The remedy for an object that is not a loader."""
    if isinstance(given, type):
        return instead_of_class(given)
    if isinstance(given, Optimizer):
        return " Return optimizers from configure_optimizers of the module."
    if is_data_set(given):
        return " Make a loader of it: DataLoader(dataset, batch_size=...)."
    if isinstance(given, FunctionType | MethodType):
        return f" It is a function: pass what it returns, as in {given.__name__}()."
    return " A function that makes a loader ends with `return loader`." if given is None else ""


def checked_callbacks(given: Any, source: str = "callbacks") -> list[Callback]:
    """The user's callbacks, as a list; ``source`` is where they come from, for messages.

    Raises:
        WrongTypeError: An object is not a Callback.
        ConfigurationError: One defines an unknown hook.
    """
    callbacks = [adapted(callback) for callback in ([] if given is None else given if is_list(given) else [given])]
    for callback in callbacks:
        if isinstance(callback, AdaptedCallback):
            continue
        if not isinstance(callback, Callback):
            hint = instead_of_class(callback) or f" {change_import(callback)}".rstrip()
            raise WrongTypeError(
                f"{source}: {callback!r} is not a Callback. Pass objects of classes derived from core.Callback.{hint}"
            )
        if not type(callback).__module__.startswith("torch_hal."):  # core's own are as they have to be
            check_hooks(source, callback, Callback)
    return callbacks


def is_data_set(given: Any) -> bool:
    """Whether ``given`` is a map-style data set, which yields items and no batches."""
    return isinstance(given, Dataset) and not isinstance(given, IterableDataset)


def all_callbacks(given: Any, settings: Settings) -> list[Callback]:
    """The user's callbacks and those that the Trainer adds, in the order in which they are called.

    Raises:
        WrongTypeError: An object is not a Callback.
        ConfigurationError: A setting contradicts the callbacks, one is not available, or one defines an unknown hook.
    """
    callbacks = checked_callbacks(given)
    if settings.max_time is not None:
        if any(isinstance(callback, Timer) for callback in callbacks):
            raise ConfigurationError(
                f"max_time={settings.max_time!r}, but there is a Timer among the callbacks. Remove one of the two."
            )
        callbacks.append(Timer(settings.max_time))
    added: tuple[tuple[type[Callback], str, bool | None], ...] = (
        (ProgressBar, "enable_progress_bar", settings.enable_progress_bar),
        (ModelSummary, "enable_model_summary", settings.enable_model_summary),
        (Checkpoint, "enable_checkpointing", settings.enable_checkpointing),
    )
    for kind, name, wanted in added:
        found = [callback for callback in callbacks if isinstance(callback, kind)]
        there = found[0] if found else None
        if kind is ProgressBar and len(found) > 1:
            raise ConfigurationError(
                f"callbacks: {quoted([type(one).__name__ for one in found])} are {len(found)} progress bars, which "
                "would write over each other. Leave one."
            )
        if there is not None and wanted is False:
            raise ConfigurationError(
                f"{name}=False, but there is a {type(there).__name__} among the callbacks. Remove one of the two."
            )
        if there is None and wanted is not False:
            lines = kind is ProgressBar and wanted is None and not ProgressBar.is_available()
            callbacks.append(ModelCheckpoint() if kind is Checkpoint else ProgressLines() if lines else kind())
    return sorted(callbacks, key=lambda callback: isinstance(callback, Checkpoint))


def attach_callbacks(callbacks: list[Callback], module: Module) -> None:
    """Add what the module's ``configure_callbacks`` returns to the Trainer's ``callbacks``, in place.

    Raises:
        WrongTypeError: It is not a Callback, or a list of them.
        ConfigurationError: One defines an unknown hook.
    """
    configure = overridden(module, Module, "configure_callbacks")
    if configure is None:
        return
    own = checked_callbacks(configure(), "configure_callbacks")
    kinds = {_kind(callback) for callback in own}
    joined = [callback for callback in callbacks if _kind(callback) not in kinds] + own
    callbacks[:] = sorted(joined, key=lambda callback: isinstance(callback, Checkpoint))


def _kind(callback: Callback) -> type[Any]:
    return type(callback.given) if isinstance(callback, AdaptedCallback) else type(callback)


def check_hooks(argument: str, given: Any, base: type[Any]) -> None:
    """Reject hooks that cannot be called, those of other libraries, and each ``on_…`` that ``base`` lacks.

    Raises:
        ConfigurationError: It defines such a hook.
    """
    kind, called = type(given), called_by_itself(given, base)
    own = own_names(given, base)
    if own:  # most classes define hooks only, and need no table
        known = remedies("methods", ("Callback", "Module") if base is Module else [base.__name__])
        if name := next(
            (name for name in known if name in own and name not in called and callable(getattr(kind, name))), None
        ):
            raise ConfigurationError(
                f"{argument}: {kind.__name__} defines {name!r}, which the Trainer does not call. {known[name]}"
            )
    check_signatures(argument, given, base)
    check_names(argument, given, base, own, called)
    hooks = [name for name in dir(base) if name.startswith("on_") and callable(getattr(base, name))]
    unknown = {name for name in dir(kind) if name.startswith("on_")}.difference(hooks)
    for name in sorted(unknown):
        if name in called or not callable(getattr(kind, name)):
            continue
        raise ConfigurationError(
            f"{argument}: {kind.__name__} defines {name!r}, which is not a hook, so it would never be called."
            f"{nearest(name, hooks)} Hooks: {quoted(hooks)}. If it is not meant as a hook, give it a name that does "
            "not begin with 'on_'."
        )


def _remedy(given: Any) -> str:
    if isinstance(given, type):
        return instead_of_class(given)
    if isinstance(given, str | os.PathLike):
        return " Pass the module, and the path of a checkpoint as ckpt_path=."
    if isinstance(given, Mapping):
        return " If it is the state of a module, load it before: module.load_state_dict(state)."
    if isinstance(given, list | tuple) and any(isinstance(each, nn.Module) for each in given):
        return " Pass one module, which may hold the others."
    if hasattr(given, "__iter__"):
        return " The module comes first, then the loaders: fit(module, train_dataloaders)."
    return ""


def _define(missing: list[str], module: nn.Module) -> str:
    """How to define the steps that ``module`` lacks."""
    steps = [f"{name}(self{', batch, batch_idx' * name.endswith('_step')})" for name in missing]
    own_loop = "" if isinstance(module, Module) else ", or train it in a loop of your own with core.Runtime"
    return f" Define {' and '.join(steps)} in its class{own_loop}."


def described(given: Any) -> str:
    """What the user passed, for a message: ``the class X`` or ``an object of type X``."""
    return f"the class {given.__name__}" if isinstance(given, type) else f"an object of type {type(given).__name__}"
