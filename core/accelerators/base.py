"""The Accelerator: one kind of hardware.

A vendor's class must work when it overrides only ``parse_devices``, ``get_parallel_devices``, ``auto_device_count``,
``is_available`` and ``get_device_stats``; every other method reaches the hardware through torch's device-neutral calls
for the type of the device it is given.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from core.accelerators.devices import parse_devices
from core.accelerators.modules import call_for_device, device_function
from core.errors import BackendError, ConfigurationError, quoted
from core.registration import AcceleratorRegistry

__all__ = ["CAPABILITIES", "Accelerator"]

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
"""What hardware is taken to be able to do unless its accelerator says that it lacks it.

``float64``, ``float16``, ``bfloat16``: compute in that dtype. ``autocast``: :class:`torch.autocast` on its device type.
``loss_scaling``: :class:`torch.amp.GradScaler` on it. ``collectives``: several processes, a device each, in one process
group. ``rng_state``: its generator's state is read and put back exactly. ``memory_stats``: ``get_device_stats`` has
``memory_allocated_bytes``. ``eager``: it runs single operations on tensors, not compiled steps alone.
"""

_CALLED_WITHOUT_SELF = {
    "parse_devices": ("devices",),
    "get_parallel_devices": ("devices",),
    "auto_device_count": (),
    "is_available": (),
}
"""The methods that ask nothing of an instance, with the arguments they are called with."""


class Accelerator(ABC):
    """One kind of hardware: how to find it, pick devices, set them up and ask their state.

    The four methods that ask nothing of an instance (``parse_devices``, ``get_parallel_devices``,
    ``auto_device_count``, ``is_available``) may be written with ``self``, as static methods, or as plain functions.

    A class that defines the class method ``register_accelerators(cls, accelerator_registry)`` is offered the in-process
    registry once, when it is defined.
    """

    name: str = ""
    """The name it is asked for by; a class that sets none is called by its own: ``xpu`` for ``XPUAccelerator``."""

    default_strategy: ClassVar[str] = "single_device"
    """As in :class:`core.specs.AcceleratorSpec`, for an instance given directly."""
    default_parallel_strategy: ClassVar[str] = "ddp"
    """As in :class:`core.specs.AcceleratorSpec`, for an instance given directly."""
    lacks: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What it cannot do: a word of :data:`CAPABILITIES` each, and the reason that is shown to who asks for it. What is
    not in it is declared to work."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := sorted(set(cls.lacks) - CAPABILITIES):
            raise ConfigurationError(
                f"{cls.__name__}.lacks: {quoted(unknown)} unknown. Valid: {quoted(sorted(CAPABILITIES))}."
            )
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.removesuffix("Accelerator").lower() or cls.__name__.lower()
        for method, arguments in _CALLED_WITHOUT_SELF.items():
            function = cls.__dict__.get(method)
            if isinstance(function, FunctionType) and _takes_no_self(function, arguments):
                setattr(cls, method, staticmethod(function))
        if "register_accelerators" in cls.__dict__:
            register: Callable[[Any], None] = cls.__dict__["register_accelerators"].__get__(None, cls)
            register(AcceleratorRegistry)

    # -- finding and choosing ------------------------------------------------------------------------------------

    @abstractmethod
    def is_available(self) -> bool:
        """Whether the hardware can be used here and now. Never raises."""

    @abstractmethod
    def auto_device_count(self) -> int:
        """How many devices ``devices="auto"`` means."""

    def device_limit(self) -> int | None:
        """How many devices there are at most; ``None`` where any number of processes can share the hardware."""
        return self.auto_device_count()

    def parse_devices(self, devices: Any) -> Any:
        """The indices that ``devices`` means; see :mod:`core.accelerators.devices` for the grammar.

        When a run is resolved, core has applied the grammar already and ``devices`` is a list of indices; an override
        may reorder or replace them and returns what :meth:`get_parallel_devices` takes.
        """
        return parse_devices(
            devices, all_devices=self.auto_device_count(), limit=self.device_limit(), accelerator=self.name
        )

    @abstractmethod
    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """The torch devices for what :meth:`parse_devices` returned, in order; one process uses one of them."""

    def pick_devices(self, count: int) -> list[int]:
        """The indices that a bare number of devices means, such as those that nobody else uses; the first, by default.

        Not asked where somebody else has started the processes: each of them would choose for itself.

        Raises:
            DeviceError: There are not so many to choose from.
        """
        return list(range(count))

    def import_backend(self) -> None:  # noqa: B027 - torch itself knows most types
        """Import what gives torch this type of device, where torch does not do so by itself.

        Called in every process before a device is named.
        """

    # -- using ---------------------------------------------------------------------------------------------------

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` this process's current one.

        Raises:
            BackendError: It is one of several, and torch has no call to select it.
        """
        index: int | None = device.index
        if index is None:
            return
        set_device = device_function(device.type, "set_device")
        if set_device is not None:
            set_device(index)
        elif index > 0:
            raise self._lacks(device, "set_device", "setup_device")

    def teardown(self) -> None:  # noqa: B027 - most hold nothing
        """Free what this accelerator holds in this process."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until all work queued on ``device`` is done; where torch has no such call, nothing is ever queued."""
        call_for_device(device, "synchronize")

    def empty_cache(self, device: torch.device) -> None:
        """Give memory that torch caches for ``device`` back to it, where it caches any."""
        empty_cache = device_function(device.type, "empty_cache")
        if empty_cache is not None:
            empty_cache()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Statistics of ``device`` for loggers, by name; numbers, in the unit that the name ends with."""
        del device
        return {}

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        """The state of the random number generator of ``device``, a byte tensor on the CPU.

        Raises:
            BackendError: torch has no call for it, and a resumed run would draw other numbers.
        """
        if device.type == "cpu":
            return torch.get_rng_state()
        state: torch.Tensor = self._rng_function(device, "get_rng_state")(device)
        return state

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Put the random number generator of ``device`` back into ``state``.

        Raises:
            BackendError: torch has no call for it.
        """
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            self._rng_function(device, "set_rng_state")(state, device)

    # -- what other rooms ask instead of naming hardware ----------------------------------------------------------

    def fork_unsafe_reason(self) -> str | None:
        """Why this process must not be forked any more, such as hardware that it already uses; ``None`` if it may."""
        return None

    def autocast_device_type(self, device: torch.device) -> str:
        """The ``device_type`` that :class:`torch.autocast` and :class:`torch.amp.GradScaler` take for ``device``."""
        return device.type

    def process_group_backend(self, device: torch.device) -> str:
        """The ``torch.distributed`` backend that serves collectives on ``device``.

        Raises:
            BackendError: torch knows no backend for this type of device.
        """
        known = dist.Backend.default_device_backend_map if dist.is_available() else {}
        backend = known.get(device.type)
        if backend is None:
            raise BackendError(
                f"accelerator {self.name!r}: torch.distributed has no backend for device type {device.type!r}, but for "
                f"{quoted(sorted(known))}. Valid: process_group_backend= on the strategy, or a backend that the "
                "accelerator's package registers."
            )
        return str(backend)

    def _rng_function(self, device: torch.device, name: str) -> Callable[..., Any]:
        function = device_function(device.type, name)
        if function is None:
            raise self._lacks(device, name, name)
        return function

    def _lacks(self, device: torch.device, function: str, override: str) -> BackendError:
        return BackendError(
            f"accelerator {self.name!r}: device '{device}' needs torch.{device.type}.{function}, which is not there. "
            f"Valid: a torch backend that provides it, or {type(self).__name__}.{override} overridden."
        )


def _takes_no_self(function: FunctionType, arguments: tuple[str, ...]) -> bool:
    signature = inspect.signature(function)
    if "self" in signature.parameters:
        return False
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
