"""Modules and optimizers as a strategy sets them up: moved to their device, and wrapped."""

from __future__ import annotations

import copy
from abc import ABCMeta
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from types import FunctionType, MappingProxyType, MemberDescriptorType
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ConfigurationError
from ..precisions.base import state_dtypes_kept
from ..utilities.nested import map_tensors
from ..utilities.torch_private import moves_in_place

M = TypeVar("M", bound=nn.Module)


def move_module(module: M, device: torch.device) -> M:
    """Move ``module`` to ``device`` in place; every parameter stays the same object.

    Optimizers and tied weights refer to parameters as objects. ``module.to`` alone creates new ones where tensors of
    one device cannot replace those of the other in place, as with many backends from outside torch, on the way to the
    device and back to the host: such parameters are swapped.

    Raises:
        ConfigurationError: A parameter or buffer is on ``meta``, so it has no data to move.
    """
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta:
            raise ConfigurationError(
                f"module: {name!r} of {type(module).__name__} is on device 'meta' and has no data. Create the module "
                "on a real device, or use a strategy that initializes modules on 'meta'."
            )
    places = {parameter.device for parameter in module.parameters()}
    before = torch.__future__.get_swap_module_params_on_conversion()
    swap = before or not all(moves_in_place(place, device) for place in places)
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        return module.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def move_optimizer_state(optimizer: Optimizer) -> None:
    """Move the state that ``optimizer`` keeps for each parameter to the parameter's device."""
    for parameter, state in optimizer.state.items():
        kept = [value for value in state.values() if isinstance(value, Tensor) and value.dim()]
        if any(value.device != parameter.device for value in kept):
            # load_state_dict follows torch's rule of what moves with the parameter: step counts may stay on the CPU.
            with state_dtypes_kept(optimizer):
                optimizer.load_state_dict(optimizer.state_dict())
            return


class ModuleWrapper(nn.Module):
    """``module`` with another forward pass; the base class of what :meth:`core.Strategy.setup_module` returns.

    A subclass overrides :meth:`forward`, which calls ``self.module``. :meth:`core.Strategy.unwrap_module` finds the
    user's module inside. Users of a front end do not see the wrapper: what ``prepare`` returns has the attributes and
    the ``state_dict`` of their own module.

    Args:
        module: The user's module, or another wrapper.
    """

    module: nn.Module

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training  # not train(), which would change submodules that the user has put in eval mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the module's forward pass."""
        return self.module(*args, **kwargs)


def unwrap_module(module: nn.Module) -> nn.Module:
    """The module inside all wrappers; a module without a wrapper is returned as it is."""
    while isinstance(module, ModuleWrapper):
        module = module.module
    return module


def call_without_gradients(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` under :class:`torch.no_grad`, and outside of :class:`torch.inference_mode`.

    Tensors made in inference mode cannot take part in training later. So parameters that an engine gathers during
    validation must not be made there. Arguments that were made there are copied, since they cannot be changed in
    place outside of it.
    """
    with torch.inference_mode(False), torch.no_grad():
        return function(*map_tensors(_normal, args), **map_tensors(_normal, kwargs))


class InferenceModule(ModuleWrapper):
    """Runs the forward pass of ``module`` without gradients; for :meth:`core.Strategy.inference_module`.

    Args:
        module: The module that is called.
        after: Called after each forward pass; marks where a step ends, for instance.
        in_inference_mode: Whether the module may run in :class:`torch.inference_mode`; if not,
            :func:`call_without_gradients` calls it.
    """

    def __init__(
        self, module: nn.Module, *, after: Callable[[], None] | None = None, in_inference_mode: bool = False
    ) -> None:
        super().__init__(module)
        self._after = after
        self._in_inference_mode = in_inference_mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the module's forward pass."""
        if self._in_inference_mode:
            output = self.module(*args, **kwargs)
        else:
            output = call_without_gradients(self.module, *args, **kwargs)
        if self._after is not None:
            self._after()
        return output


def _normal(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_inference() else tensor


_CLASSES: WeakValueDictionary[tuple[type, type], Any] = WeakValueDictionary()


def joined_class(
    wrapper: type,
    wrapped: type,
    own: tuple[str, ...],
    original: str,
    namespace: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """The class of all wrappers of class ``wrapper`` around objects of class ``wrapped``.

    Args:
        wrapper: Comes first among the base classes.
        wrapped: The class of the user's objects.
        own: The attributes that a wrapper keeps for itself; it shares all others with the user's object.
        original: The one of them that is the user's object.
        namespace: Further attributes of the class, if it is made now.
    """
    joined = _CLASSES.get((wrapper, wrapped))
    if joined is None:
        joined = _CLASSES[wrapper, wrapped] = _join(wrapper, wrapped, own, original, namespace)
    return joined


def _join(wrapper: type, wrapped: type, own: tuple[str, ...], original: str, namespace: Mapping[str, Any]) -> Any:
    # Slots take precedence over the shared __dict__, where the user's object may have an attribute of the same name.
    shared_slots = {
        name
        for base in wrapped.__mro__
        for name, value in vars(base).items()
        if isinstance(value, MemberDescriptorType) and name not in own
    }
    # A metaclass of the user's, which may register classes or need arguments, is not called; ABCMeta keeps caches.
    make = ABCMeta.__new__ if issubclass(type(wrapped), ABCMeta) else type.__new__
    bases = (wrapped,) if issubclass(wrapped, wrapper) else (wrapper, wrapped)
    contents = {
        **{name: _forwarded(name, original) for name in shared_slots},
        "__slots__": own,
        "__module__": wrapped.__module__,
        "__qualname__": wrapped.__qualname__,
        "__doc__": wrapped.__doc__,
        **namespace,
    }
    return make(type(wrapped), wrapped.__name__, bases, contents)


def _forwarded(name: str, original: str) -> property:
    """An attribute that the user's object keeps in a slot, outside of ``__dict__``."""
    return property(
        lambda self: getattr(getattr(self, original), name),
        lambda self, value: setattr(getattr(self, original), name, value),
        lambda self: delattr(getattr(self, original), name),
    )


class OptimizerWrapper(Optimizer):
    """The user's optimizer with another ``step``, for engines that step by themselves.

    The wrapper is an instance of the optimizer's class, so ``isinstance(wrapper, torch.optim.Adam)`` holds, and has the
    same attributes: both objects share one ``__dict__``. Only ``step`` is separate. Setting ``wrapper.step``, as
    learning rate schedulers do, leaves ``optimizer.step`` alone and vice versa.

    Forwarding to the optimizer instead would need ``__getattr__``, which slows down every step, or a class for each
    optimizer, and ``isinstance`` would fail. Replacing ``optimizer.step`` would change the user's object, whose own
    step the engine calls.

    A subclass may override all methods but ``step``.

    Args:
        optimizer: The user's optimizer.
        step: Called as ``wrapper.step(closure=None)``. It must not refer to the wrapper, which would be a reference
            cycle that keeps parameters alive.
    """

    own_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes that a subclass keeps for itself, as in ``__slots__``. All others are shared with the optimizer."""

    _core_optimizer: Optimizer
    _core_call: tuple[type[OptimizerWrapper], tuple[Any, ...], dict[str, Any]]
    """The class and the arguments that the wrapper was made with, for copies."""

    def __init_subclass__(cls) -> None:
        # Not passed on: the user's class, which may register its subclasses, comes next.
        if isinstance(cls.__dict__.get("step"), FunctionType):
            raise TypeError(
                f"class {cls.__name__} defines step, which has no effect in an OptimizerWrapper. Pass the function to "
                "OptimizerWrapper.__init__(optimizer, step) instead."
            )

    def __new__(cls, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Self:
        """An instance of ``cls`` and of the optimizer's class."""
        # The user's class may override __new__, __init__ and __setattr__: none of them runs for a wrapper.
        self: Self = object.__new__(_joined_class(cls, type(optimizer)))
        object.__setattr__(self, "__dict__", optimizer.__dict__)
        object.__setattr__(self, "_core_optimizer", optimizer)
        object.__setattr__(self, "_core_call", (cls, (optimizer, *args), kwargs))
        return self

    def __init__(self, optimizer: Optimizer, step: Callable[..., Any]) -> None:
        object.__setattr__(self, "step", _Step(step))

    def _patch_step_function(self) -> None:
        """Nothing: torch adds its step hooks to a class here, and the class of the optimizer has them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        duplicate: Self = _remake(*copy.deepcopy(self._core_call, memo))
        return duplicate

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _remake, self._core_call


def unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside an :class:`OptimizerWrapper`; any other optimizer is returned as it is."""
    return optimizer._core_optimizer if isinstance(optimizer, OptimizerWrapper) else optimizer


class _Step(partial[Any]):
    """The ``step`` of a wrapper. It looks like a bound method to schedulers, which bind ``__func__`` again."""

    @property
    def __func__(self) -> Any:
        return staticmethod(self)


def _joined_class(wrapper: type[OptimizerWrapper], wrapped: type[Optimizer]) -> Any:
    """The class of all wrappers of one class around optimizers of one class."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Optimizer:
        """``type(wrapper)(parameters, ...)`` makes another optimizer of the user's class."""
        return wrapped(*args, **kwargs)

    namespace = {
        "__new__": new,
        "__init__": wrapper.__init__,
        "__module__": wrapper.__module__,
        "__qualname__": f"{wrapper.__qualname__}[{wrapped.__qualname__}]",
    }
    own = ("step", "_core_optimizer", "_core_call", *wrapper.own_attributes)
    return joined_class(wrapper, wrapped, own, "_core_optimizer", namespace)


def _remake(cls: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cls(*args, **kwargs)
