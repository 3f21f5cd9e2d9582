"""The Accelerator: one kind of hardware.

A vendor's class must work when it overrides only ``parse_devices``, ``get_parallel_devices``, ``auto_device_count``,
``is_available`` and ``get_device_stats``; every other method reaches the hardware through torch's device-neutral calls
for the type of the device it is given.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist

from ..errors import BackendError, ConfigurationError, DeviceError, WrongTypeError, quoted
from ..registration import REGISTRIES
from ..utilities.renamed import Renaming
from .devices import parse_devices

CAPABILITIES = frozenset(
    {
        "autocast",
        "bfloat16",
        "collectives",
        "eager",
        "float16",
        "float64",
        "loss_scaling",
        "memory_stats",
        "rng_state",
    }
)
"""What every accelerator is expected to support, unless its ``unsupported`` names it.

``float64``, ``float16``, ``bfloat16``: compute in that dtype. ``autocast``: :class:`torch.autocast` on its device type.
``loss_scaling``: :class:`torch.amp.GradScaler` on it. ``collectives``: several processes with one device each in one
process group. ``rng_state``: get and set the state of its random number generator exactly. ``memory_stats``:
``get_device_stats`` has ``memory_allocated_bytes``. ``eager``: single operations on tensors, not only compiled steps.
"""

_CALLED_WITHOUT_SELF = {
    "parse_devices": ("devices",),
    "get_parallel_devices": ("devices",),
    "auto_device_count": (),
    "is_available": (),
}
"""The methods that may be written without ``self``, with the arguments they are called with."""


class Accelerator(Renaming, ABC):
    """One kind of hardware: how to find it, pick devices, set them up and ask their state.

    ``parse_devices``, ``get_parallel_devices``, ``auto_device_count`` and ``is_available`` can be written with
    ``self``, as static methods, or as plain functions. All of them can also be called on the class, as in
    ``CPUAccelerator.is_available()``; one with ``self`` then gets a new object.

    If a class defines the class method ``register_accelerators(cls, accelerator_registry)``, it is called once with the
    in-process registry, when the class is defined.
    """

    name: str = ""
    """The name for ``accelerator=``; by default derived from the class's name: ``xpu`` for ``XPUAccelerator``."""

    device_family: str = ""
    """What follows ``MULTI_`` in :attr:`core.Runtime.distributed_type`; by default ``name`` in capitals."""
    default_strategy: ClassVar[str] = "single_device"
    """See :class:`core.specs.AcceleratorSpec`, for an instance given directly."""
    default_parallel_strategy: ClassVar[str] = "ddp"
    """See :class:`core.specs.AcceleratorSpec`, for an instance given directly."""
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What the hardware cannot do: a name in :data:`CAPABILITIES` and the reason that users see. Everything that is not
    listed is declared to work."""
    out_of_memory_texts: ClassVar[tuple[str, ...]] = ()
    """What errors of the hardware's libraries say, in any case of letters, when memory is short, besides ``out of
    memory`` and what torch's allocators say."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """An object of a derived class.

        Raises:
            WrongTypeError: It is the base class that is called, as scripts for another library do.
        """
        if cls is Accelerator:
            raise WrongTypeError(
                f"core.Accelerator is the base class of kinds of hardware, and was called with "
                f"{quoted(kwargs) if kwargs else 'arguments' if args else 'no arguments'}. In place of Accelerate's "
                "class, write: from core import Runtime as Accelerator"
            )
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := sorted(set(cls.unsupported) - CAPABILITIES):
            raise ConfigurationError(
                f"{cls.__name__}.unsupported: unknown capability {quoted(unknown)}. "
                f"Valid: {quoted(sorted(CAPABILITIES))}."
            )
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.removesuffix("Accelerator").lower() or cls.__name__.lower()
        for method, arguments in _CALLED_WITHOUT_SELF.items():
            function = cls.__dict__.get(method)
            if isinstance(function, FunctionType):
                setattr(cls, method, _without_self(function, arguments))
        if "register_accelerators" in cls.__dict__:
            register: Callable[[Any], None] = cls.__dict__["register_accelerators"].__get__(None, cls)
            register(REGISTRIES["accelerator"])

    # -- finding and choosing ------------------------------------------------------------------------------------

    @abstractmethod
    def is_available(self) -> bool:
        """Return whether the hardware can be used on this machine now. Never raises, in any thread."""

    @abstractmethod
    def auto_device_count(self) -> int:
        """Return the number of devices that ``devices="auto"`` means."""

    def device_limit(self) -> int | None:
        """Return the number of available devices; ``None`` if any number of processes can share the hardware."""
        return self.auto_device_count()

    def parse_devices(self, devices: Any) -> Any:
        """Return the indices that ``devices`` means; see :mod:`core.accelerators.devices` for the grammar.

        In a run, core has already applied the grammar and ``devices`` is a list of indices. An override can replace
        them, and returns what :meth:`get_parallel_devices` takes; indices stay in the order of the request, since the
        first process gets the first one.
        """
        return parse_devices(
            devices, all_devices=self.auto_device_count(), limit=self.device_limit(), accelerator=self.name
        )

    @abstractmethod
    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the torch devices for the result of :meth:`parse_devices`, in order; each process uses one of them."""

    def pick_devices(self, count: int) -> list[int]:
        """Return the indices for ``devices=count``, such as those of idle devices; by default the first ones.

        Not called where a launcher started the processes, since each process would choose for itself.

        Raises:
            DeviceError: There are fewer devices than ``count`` to choose from.
        """
        return list(range(count))

    def pick_idle_devices(self, count: int) -> list[int]:
        """Return the indices for ``devices=count`` with ``auto_select_gpus=True``: devices that no other process uses.

        Raises:
            DeviceError: There are fewer idle devices than ``count``, or the hardware cannot say.
        """
        raise DeviceError(
            f"auto_select_gpus=True, devices={count}: accelerator {self.name!r} cannot tell which devices other "
            "processes use. Leave it out, or give the indices, as in devices=[0, 1]."
        )

    def import_backend(self) -> None:  # torch itself knows most types
        """Import the package that adds this device type to torch, unless torch does so by itself.

        Called in every process before a device is used.
        """

    # -- using ---------------------------------------------------------------------------------------------------

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current device of this process.

        Raises:
            BackendError: Its index is not 0, and torch has no function to select it.
        """
        index: int | None = device.index
        if index is None:
            return
        set_device = device_function(device.type, "set_device")
        if set_device is not None:
            set_device(index)
        elif index > 0:
            raise self._missing(device, "set_device", "setup_device")

    def teardown(self) -> None:  # most hold nothing
        """Release the resources that this accelerator holds in this process."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until all work queued on ``device`` is done; a no-op if torch has no such function for the device."""
        call_for_device(device, "synchronize")

    def empty_cache(self, device: torch.device) -> None:
        """Release the memory that torch caches for ``device``, if it caches any."""
        empty_cache = device_function(device.type, "empty_cache")
        if empty_cache is not None:
            empty_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that the device, or the host, has too little memory.

        By default torch's own exception, messages of its allocators, and :attr:`out_of_memory_texts`. ``batch_size``
        finders try a smaller size then.
        """
        text = str(error).lower()
        return is_out_of_memory(error) or any(each.lower() in text for each in self.out_of_memory_texts)

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return statistics of ``device`` for loggers, by name: numbers, in the unit that the name ends with."""
        return {}

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        """Return the state of the random number generator of ``device``, a byte tensor on the CPU.

        Raises:
            BackendError: torch has no function for it, so a resumed run would draw different numbers.
        """
        if device.type == "cpu":
            return torch.get_rng_state()
        state: torch.Tensor = self._rng_function(device, "get_rng_state")(device)
        return state

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Set the state of the random number generator of ``device``.

        Raises:
            BackendError: torch has no function for it.
        """
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            self._rng_function(device, "set_rng_state")(state, device)

    def inexact_resume_reason(self, device: torch.device) -> str | None:
        """Return why a resumed run does not draw the same random numbers on ``device``; ``None`` if it does."""
        if "rng_state" in self.unsupported:
            return self.unsupported["rng_state"]
        return self.missing_rng_function(device)

    def missing_rng_function(self, device: torch.device) -> str | None:
        """Return which of torch's functions for the generator of ``device`` does not exist and is not overridden."""
        if device.type == "cpu":
            return None
        for name in ("get_rng_state", "set_rng_state"):
            is_overridden = getattr(type(self), name) is not getattr(Accelerator, name)
            if not is_overridden and device_function(device.type, name) is None:
                return f"torch.{device.type}.{name} does not exist"
        return None

    # -- what other packages of core need, so that they name no hardware ------------------------------------------

    def fork_unsafe_reason(self) -> str | None:
        """Return why this process can no longer be forked, such as hardware in use; ``None`` if it can."""
        return None

    def autocast_device_type(self, device: torch.device) -> str:
        """Return the ``device_type`` for :class:`torch.autocast` and :class:`torch.amp.GradScaler` on ``device``."""
        return device.type

    def process_group_backend(self, device: torch.device) -> str:
        """Return the ``torch.distributed`` backend for collectives on ``device``.

        Raises:
            BackendError: torch has no backend for this device type.
        """
        known = dist.Backend.default_device_backend_map if dist.is_available() else {}
        backend = known.get(device.type)
        if backend is None:
            strategy = self.default_parallel_strategy
            own = "" if strategy == Accelerator.default_parallel_strategy else f"strategy={strategy!r} or "
            raise BackendError(
                f"accelerator {self.name!r}: torch.distributed has no backend for device type {device.type!r} (only "
                f"for: {quoted(sorted(known))}). Set {own}devices=1, pass process_group_backend= to the strategy, or "
                f"register a backend for {device.type!r} with torch.distributed.Backend.register_backend. A plugin for "
                "hardware without collectives lists them in unsupported."
            )
        return str(backend)

    def _rng_function(self, device: torch.device, name: str) -> Callable[..., Any]:
        function = device_function(device.type, name)
        if function is None:
            raise self._missing(device, name, name)
        return function

    def _missing(self, device: torch.device, function: str, override: str) -> BackendError:
        return BackendError(
            f"accelerator {self.name!r}: device '{device}' needs torch.{device.type}.{function}, which does not exist. "
            f"Use a torch backend that provides it, or override {type(self).__name__}.{override}."
        )


_OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory"),
    "_alloc_failed",  # how libraries that torch calls end the names of such a status
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is torch's exception for too little memory, or has a message of its allocators."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(message in text for message in _OUT_OF_MEMORY)
    )


class _OnClass:
    """A method that can be called on the class too; there it gets a new object if it is given none."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function

    def __get__(self, accelerator: Accelerator | None, kind: type[Accelerator]) -> Callable[..., Any]:
        if accelerator is not None:
            return MethodType(self._function, accelerator)

        @wraps(self._function)
        def call(*args: Any, **kwargs: Any) -> Any:
            has_object = bool(args) and isinstance(args[0], Accelerator)
            return self._function(*args, **kwargs) if has_object else self._function(kind(), *args, **kwargs)

        return call


def _without_self(function: FunctionType, arguments: tuple[str, ...]) -> Any:
    signature = inspect.signature(function)
    if "self" not in signature.parameters:
        with suppress(TypeError):  # it takes others
            signature.bind(*arguments)
            return staticmethod(function)
    return _OnClass(function)


for _name, _arguments in _CALLED_WITHOUT_SELF.items():
    setattr(Accelerator, _name, _without_self(vars(Accelerator)[_name], _arguments))


def device_function(device_type: str, name: str) -> Callable[..., Any] | None:
    """Return ``torch.<device_type>.<name>``, or ``None`` if torch has no such module or function."""
    function: Callable[..., Any] | None = getattr(getattr(torch, device_type, None), name, None)
    return function


def call_for_device(device: torch.device, name: str) -> Any:
    """Call ``torch.<device type>.<name>`` for ``device``; return ``None`` if there is no such function."""
    function = device_function(device.type, name)
    if function is None:
        return None
    return function(device) if _takes_argument(function) else function()


def _takes_argument(function: Callable[..., Any]) -> bool:
    # Functions of device types with at most one device per machine don't always take a device.
    try:
        return bool(inspect.signature(function).parameters)
    except ValueError:  # a compiled function without a signature
        return True
