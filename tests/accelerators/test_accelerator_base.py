"""What a vendor's class gets from Accelerator when it overrides only five methods."""
# mypy: disable-error-code="misc, override"

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from core import AcceleratorRegistry
from core.accelerators import Accelerator
from core.errors import BackendError, DeviceError

# A type that torch knows and has no module for, so that a test can put one there.
_TYPE = "hpu"
_DEVICE = torch.device(_TYPE, 1)


class _PlainFunctions(Accelerator):
    def parse_devices(devices: Any) -> Any:  # noqa: N805
        return devices

    def get_parallel_devices(devices: Any) -> Any:  # noqa: N805
        return [torch.device(_TYPE, index) for index in devices]

    def auto_device_count() -> int:
        return 2

    def is_available() -> bool:
        return True

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {"temperature_celsius": 40}


class _StaticMethods(Accelerator):
    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> Any:
        return [torch.device(_TYPE, index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return 2

    @staticmethod
    def is_available() -> bool:
        return True

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {"temperature_celsius": 40}


class _Methods(Accelerator):
    def parse_devices(self, devices: Any = "auto") -> Any:
        return devices

    def get_parallel_devices(this, devices: Any) -> Any:  # noqa: N805 - any first name will do
        return [torch.device(_TYPE, index) for index in devices]

    def auto_device_count(self) -> int:
        return 2

    def is_available(self) -> bool:
        return True

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {"temperature_celsius": 40}


class _Acme(Accelerator):
    """The least that a class can define."""

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        return [torch.device(_TYPE, index) for index in devices]

    def auto_device_count(self) -> int:
        return 2

    def is_available(self) -> bool:
        return True


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module of the device type, empty."""
    made = SimpleNamespace()
    monkeypatch.setattr(torch, _TYPE, made, raising=False)
    return made


@pytest.mark.parametrize("cls", [_PlainFunctions, _StaticMethods, _Methods], ids=lambda cls: cls.__name__)
class TestFiveMethods:
    """The five methods, written in any of the three ways."""

    def test_an_instance_answers(self, cls: type[Accelerator]) -> None:
        """All five work on an instance; ``parse_devices`` returns what the vendor's own returns."""
        accelerator = cls()
        assert accelerator.is_available() is True
        assert accelerator.auto_device_count() == 2
        assert accelerator.parse_devices([1, 0]) == [1, 0]
        assert accelerator.get_parallel_devices([1, 0]) == [torch.device(_TYPE, 1), torch.device(_TYPE, 0)]
        assert accelerator.get_device_stats(_DEVICE) == {"temperature_celsius": 40}

    def test_a_subclass_can_call_what_it_overrides(self, cls: type[Accelerator]) -> None:
        """``super()`` reaches the vendor's method from a subclass written in the ordinary way."""

        class Child(cls):  # type: ignore[valid-type]
            def auto_device_count(self) -> int:
                return int(super().auto_device_count()) + 1

            def parse_devices(self, devices: Any) -> Any:
                return list(reversed(super().parse_devices(devices)))

        assert Child().auto_device_count() == 3
        assert Child().parse_devices([0, 1]) == [1, 0]

    def test_the_rest_has_defaults(self, cls: type[Accelerator], module: SimpleNamespace) -> None:
        """Everything that a run asks in addition to the five works without being written."""
        accelerator = cls()
        selected: list[int] = []
        module.set_device = selected.append
        accelerator.setup_device(_DEVICE)
        accelerator.synchronize(_DEVICE)
        accelerator.empty_cache(_DEVICE)
        accelerator.teardown()
        assert selected == [1]
        assert accelerator.device_limit() == 2
        assert accelerator.autocast_device_type(_DEVICE) == _TYPE
        assert accelerator.fork_unsafe_reason() is None


def test_the_grammar_is_inherited() -> None:
    """A class without its own ``parse_devices`` has core's, limited by its own device count, under its own name."""
    assert _Acme().parse_devices("auto") == [0, 1]
    assert _Acme().parse_devices("1,") == [1]
    with pytest.raises(DeviceError, match=r"devices=3 for accelerator '_acme': 3 requested.*devices 0 to 1"):
        _Acme().parse_devices(3)


def test_a_class_that_lacks_a_method_cannot_be_made() -> None:
    """A missing method is an error when the accelerator is made, naming the method."""

    class Half(Accelerator):
        def is_available(self) -> bool:
            return True

    with pytest.raises(TypeError, match="auto_device_count"):
        Half()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("class_name", "name"), [("XPUAccelerator", "xpu"), ("Acme", "acme"), ("Accelerator", "accelerator")]
)
def test_name_from_the_class(class_name: str, name: str) -> None:
    """A class that sets no name is called by its class name without ``Accelerator``."""
    unnamed: Any = type(class_name, (_Acme,), {})
    assert unnamed.name == name
    named: Any = type(class_name, (_Acme,), {"name": "own"})
    assert named.name == "own"


@pytest.fixture
def registry() -> Iterator[Any]:
    """The in-process registry, left as it was."""
    before = set(AcceleratorRegistry)
    yield AcceleratorRegistry
    for name in set(AcceleratorRegistry) - before:
        AcceleratorRegistry.remove(name)


def test_register_accelerators(registry: Any) -> None:
    """A class with ``register_accelerators`` is offered the registry once, when it is defined; its subclass is not."""
    offers: list[str] = []

    class Registered(_Acme):
        @classmethod
        def register_accelerators(cls, accelerator_registry: Any) -> None:
            offers.append(cls.__name__)
            accelerator_registry.register("registered", cls, description="a test's")

    class Child(Registered):
        pass

    assert offers == ["Registered"]
    assert registry.specs()["registered"].target is Registered
    assert registry.specs()["registered"].description == "a test's"


class TestDevice:
    """The defaults, against a device module that records its calls or lacks a function."""

    def test_only_device_needs_no_selection(self, module: SimpleNamespace) -> None:
        """A type without ``set_device`` works for its only device, and a device without index is left alone."""
        _Acme().setup_device(torch.device(_TYPE, 0))
        module.set_device = pytest.fail
        _Acme().setup_device(torch.device(_TYPE))

    def test_second_device_needs_selection(self, module: SimpleNamespace) -> None:
        """A second device that cannot be selected is refused: the run would be on the first."""
        with pytest.raises(
            BackendError, match=r"'_acme': device 'hpu:1' needs torch\.hpu\.set_device.*_Acme\.setup_de"
        ):
            _Acme().setup_device(_DEVICE)

    def test_synchronize(self, module: SimpleNamespace) -> None:
        """The module's call gets the device, unless it takes none, as for types that are there only once."""
        calls: list[Any] = []
        module.synchronize = lambda device=None: calls.append(device)
        _Acme().synchronize(_DEVICE)
        module.synchronize = lambda: calls.append("only")
        _Acme().synchronize(_DEVICE)
        module.synchronize = calls.append  # compiled code that tells no signature is treated the same
        _Acme().synchronize(_DEVICE)
        assert calls == [_DEVICE, "only", _DEVICE]

    def test_empty_cache(self, module: SimpleNamespace) -> None:
        """The module's call is made where there is one."""
        calls: list[str] = []
        module.empty_cache = lambda: calls.append("emptied")
        _Acme().empty_cache(_DEVICE)
        assert calls == ["emptied"]

    def test_random_state(self, module: SimpleNamespace) -> None:
        """The state of the device's own generator is read and put back, not the host's."""
        states = {1: torch.tensor([7], dtype=torch.uint8)}
        module.get_rng_state = lambda device: states[device.index]
        module.set_rng_state = lambda state, device: states.update({device.index: state})
        assert _Acme().get_rng_state(_DEVICE).tolist() == [7]
        _Acme().set_rng_state(torch.tensor([8], dtype=torch.uint8), _DEVICE)
        assert states[1].tolist() == [8]

    def test_random_state_without_access(self, module: SimpleNamespace) -> None:
        """Without access to the generator a resumed run could not be exact: refused, naming what is missing."""
        with pytest.raises(BackendError, match=r"'_acme': device 'hpu:1' needs torch\.hpu\.get_rng_state"):
            _Acme().get_rng_state(_DEVICE)
        with pytest.raises(BackendError, match=r"torch\.hpu\.set_rng_state.*override _Acme\.set_rng_state"):
            _Acme().set_rng_state(torch.tensor([8], dtype=torch.uint8), _DEVICE)

    def test_without_any_module(self) -> None:
        """A device type for which torch has no module at all is refused with the same message."""
        with pytest.raises(BackendError, match=r"device 'ipu:0' needs torch\.ipu\.get_rng_state"):
            _Acme().get_rng_state(torch.device("ipu", 0))
        _Acme().synchronize(torch.device("ipu", 0))
        _Acme().setup_device(torch.device("ipu", 0))

    def test_devices_that_are_host_memory(self) -> None:
        """An accelerator whose tensors lie on the host has the host's generator."""
        before = _Acme().get_rng_state(torch.device("cpu"))
        drawn = torch.rand(3)
        _Acme().set_rng_state(before, torch.device("cpu"))
        assert torch.equal(torch.rand(3), drawn)


class TestProcessGroupBackend:
    """The ``torch.distributed`` backend of a device type."""

    def test_registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is the one that is registered with torch for the type."""
        monkeypatch.setitem(dist.Backend.default_device_backend_map, _TYPE, "hccl")
        assert _Acme().process_group_backend(_DEVICE) == "hccl"
        assert _Acme().process_group_backend(torch.device("cpu")) == "gloo"

    def test_not_registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without one the type is refused, and no other type's backend is taken instead."""
        # Parts of torch that other tests import register its "fake" backend for the type.
        monkeypatch.delitem(dist.Backend.default_device_backend_map, _TYPE, raising=False)
        with pytest.raises(
            BackendError, match=r"'_acme'.*no backend for device type 'hpu' .*for: 'cpu'.*process_group_backend="
        ):
            _Acme().process_group_backend(_DEVICE)
        monkeypatch.setattr(_Acme, "default_parallel_strategy", "acme_parallel")
        with pytest.raises(BackendError, match=r"Set strategy='acme_parallel' or devices=1"):
            _Acme().process_group_backend(_DEVICE)

    def test_torch_without_distributed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A torch that was built without ``torch.distributed`` is refused with the same message."""
        monkeypatch.setattr(dist, "is_available", lambda: False)
        with pytest.raises(BackendError, match=r"no backend for device type 'cpu' \(only for: none"):
            _Acme().process_group_backend(torch.device("cpu"))
