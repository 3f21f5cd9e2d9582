"""What the document on accelerators says, in its order. A run on simulated devices is in ``tests/accelerators``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core import Accelerator, AcceleratorRegistry, Request, Trainer, resolve
from core.accelerators import CPUAccelerator
from core.discovery.registry import Registry
from core.discovery.scan import Row
from core.discovery.selection import Survey
from core.errors import BackendError
from core.hookspecs import hookimpl
from core.registration import CodeRegistry
from core.specs import AcceleratorSpec


class XPUAccelerator(Accelerator):
    """As in the document: four methods without ``self``. Its library has two devices, which are the CPU."""

    def parse_devices(devices: Any) -> Any:  # type: ignore[override]  # noqa: N805
        return devices

    def get_parallel_devices(devices: Any) -> Any:  # type: ignore[override]  # noqa: N805
        return [torch.device("cpu") for _ in devices]

    def auto_device_count() -> int:  # type: ignore[misc]
        return 2

    def is_available() -> bool:  # type: ignore[misc]
        return True

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}


class WithSelf(XPUAccelerator):
    """The same, written as methods of an object."""

    def get_parallel_devices(self, devices: Any) -> Any:  # type: ignore[override]
        return [torch.device("cpu") for _ in devices]

    def auto_device_count(self) -> int:
        return 2

    def is_available(self) -> bool:
        return isinstance(self, WithSelf)


@pytest.mark.parametrize("kind", [XPUAccelerator, WithSelf])
def test_a_class_is_asked_without_an_object(kind: Any) -> None:
    """The four methods can be called on the class and on an object, whichever way they are written."""
    for accelerator in (kind, kind()):
        assert accelerator.is_available() is True
        assert accelerator.auto_device_count() == 2
        assert [*accelerator.parse_devices([0, 1])] == [0, 1]
        assert accelerator.get_parallel_devices([0]) == [torch.device("cpu")]


def test_cores_own_class_is_asked_without_an_object() -> None:
    """Also with the object as an argument, as a derived class may call the method of its base."""
    own: Any = CPUAccelerator
    assert own.is_available()
    assert own.auto_device_count() == 1
    assert own.parse_devices("2") == [0, 1]
    assert own.get_parallel_devices([0]) == [torch.device("cpu")]
    assert CPUAccelerator.is_available(CPUAccelerator())


def test_an_object_in_the_trainer() -> None:
    """It is the accelerator, and ``devices`` are its devices."""
    accelerator = XPUAccelerator()
    trainer = Trainer(accelerator=accelerator, devices=2)
    assert trainer.accelerator is accelerator
    assert trainer.num_devices == 2
    assert trainer.strategy.accelerator is accelerator


def test_a_class_that_registers_itself() -> None:
    """From then on its name is a value of ``accelerator=``, in the Trainer and on a command line."""

    class ZPUAccelerator(XPUAccelerator):
        @classmethod
        def register_accelerators(cls, accelerator_registry: CodeRegistry) -> None:
            accelerator_registry.register("zpu", cls, description="ZPU Accelerator")

    assert type(Trainer(accelerator="zpu", devices=2).accelerator) is ZPUAccelerator
    assert AcceleratorRegistry["zpu"]["description"] == "ZPU Accelerator"
    assert resolve(Request.read(environ={"CORE_ACCELERATOR": "zpu"})).accelerator.name == "zpu"


def installed(name: str) -> Survey:
    """An environment with a plugin that provides an accelerator of this name."""
    row = Row(kind="accelerator", name=name, distribution="torch-hal-acme", version="1.0", module=__name__)
    return Survey([row], "", [])


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """This module as the plugin's."""
    return [AcceleratorSpec(name="xpu", target="torch_hal_acme:Theirs", description="theirs")]


def registry_of(override: bool) -> Registry:
    """What a run sees of a script that registers a name of an installed plugin."""
    AcceleratorRegistry.register("xpu", XPUAccelerator, override=override)
    registered = {"accelerator": AcceleratorRegistry.specs()}
    return Registry(installed("xpu"), registered, overriding={"accelerator": AcceleratorRegistry.overriding})


def test_a_name_that_an_installed_plugin_has_too() -> None:
    """The script's class is used if the script says so; else the error names both, and how to choose."""
    with pytest.raises(BackendError) as caught:
        registry_of(override=False).find("accelerator", "xpu")
    said = str(caught.value)
    assert "XPUAccelerator is registered in this process" in said
    assert "torch_hal_acme:Theirs of torch-hal-acme 1.0" in said
    assert "AcceleratorRegistry.register('xpu', ..., override=True)" in said
    assert [spec.target for spec in registry_of(override=True).find("accelerator", "xpu")] == [XPUAccelerator]


def test_cores_own_names_stay_cores() -> None:
    """``override=True`` does not replace the CPU."""
    AcceleratorRegistry.register("cpu", XPUAccelerator, override=True)
    with pytest.raises(BackendError, match=r"'cpu': .*Register it under another name\."):
        Trainer(accelerator="cpu")
