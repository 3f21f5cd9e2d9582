"""A plain ``nn.Module`` with steps as a Module."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import nn

from ...errors import ConfigurationError, WrongTypeError
from ...hints.remedies import change_import
from ...utilities.torch_private import MODULE_CONTENT, MODULE_LOADS, uncompiled
from .datamodule import DataHooks
from .hooks import ModuleHooks
from .module import CUSTOM_STEP, Module

STEPS = (
    *("training_step", "validation_step", "test_step", "predict_step"),
    *("training_step_end", "validation_step_end", "test_step_end"),
)
CONFIGURED = ("configure_optimizers", "configure_callbacks", "configure_model", "lr_scheduler_step")
EXTRA_STATE = ("get_extra_state", "set_extra_state")
"""Methods that torch checks for an override."""


class PlainModule(Module):
    """A Module that has the content and the steps of the user's own, and no content itself.

    Its parameters, buffers and submodules are those of ``user_module``, under the same names. Callbacks get it as
    their argument ``module``; it has each attribute of ``user_module`` that a Module lacks.

    Args:
        user_module: The user's own.
    """

    user_module: nn.Module

    def __init__(self, user_module: nn.Module) -> None:
        self.__dict__["user_module"] = user_module  # not as a submodule
        training = user_module.training
        super().__init__()
        self.training = training
        for name in MODULE_CONTENT:
            self.__dict__[name] = user_module.__dict__[name]

    @property
    def training(self) -> bool:
        """Whether ``user_module`` is in training mode."""
        return self.user_module.training

    @training.setter
    def training(self, mode: bool) -> None:
        self.user_module.training = mode

    def train(self, mode: bool = True) -> PlainModule:
        """Put ``user_module`` in training mode."""
        self.user_module.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> PlainModule:
        self.user_module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "user_module":
                raise
            return getattr(self.user_module, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return as_module, (self.user_module,)


class _OfUser:
    """An attribute that is read from the user's module."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: PlainModule | None, kind: type[PlainModule]) -> Any:
        return self if owner is None else getattr(owner.user_module, self._name)


class _Kept:
    """The adapter of a user's module, kept in that module, and left out of copies and pickles of it."""

    def __init__(self, adapter: PlainModule | None = None) -> None:
        self.adapter = adapter

    def __reduce__(self) -> Any:
        return _Kept, ()


def as_module(user_module: Any) -> Any:
    """``user_module`` as a :class:`core.Module`, the same object in each call; what is not a plain one is returned.

    Of what ``torch.compile`` has returned, the module in it, which notes how it was compiled.

    Raises:
        ConfigurationError: It optimizes manually, which needs a :class:`core.Module`.
    """
    original, compiler = uncompiled(user_module)
    module = _adapted(user_module if original is None else original)
    if isinstance(module, Module):
        module.__dict__["_given_compiler"] = compiler
    return module


def _adapted(user_module: Any) -> Any:
    if isinstance(user_module, Module) or not isinstance(user_module, nn.Module):
        return user_module
    if hint := change_import(user_module):
        raise WrongTypeError(f"model: must be a core.Module, not a {type(user_module).__name__}. {hint}")
    kept = user_module.__dict__.get("_core_adapter")
    if kept is not None and kept.adapter is not None:
        return kept.adapter
    kind = type(user_module)
    if getattr(user_module, "automatic_optimization", True) is not True:
        raise ConfigurationError(
            f"module: {kind.__name__} has automatic_optimization={user_module.automatic_optimization!r}, which needs "
            "methods such as manual_backward. Derive it from core.Module."
        )
    adapter: PlainModule = type(kind.__name__, (PlainModule,), _delegates(kind))(user_module)
    user_module.__dict__["_core_adapter"] = _Kept(adapter)
    return adapter


def _delegates(kind: type[nn.Module]) -> dict[str, Any]:
    """What a class for ``kind`` reads from the user's object: every method of a Module's that ``kind`` defines."""
    names = [name for base in (ModuleHooks, DataHooks) for name in vars(base) if not name.startswith("_")]
    names += [*STEPS, *CONFIGURED, *CUSTOM_STEP, "state_dict", *MODULE_LOADS]
    found: dict[str, Any] = {name: _OfUser(name) for name in names if hasattr(kind, name)}
    found |= {name: _OfUser(name) for name in EXTRA_STATE if getattr(kind, name) is not getattr(nn.Module, name)}
    if kind.forward is not nn.Module.forward:
        found["forward"] = property(attrgetter("user_module"))  # called as a module, with its hooks
    return {"__doc__": kind.__doc__, "__module__": kind.__module__} | found
