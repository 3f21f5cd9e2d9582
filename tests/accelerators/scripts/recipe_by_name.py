"""The custom accelerator of the founding documents, its methods static, registered when it is defined, used by name.

One process, one device; by instance as well, with static methods and with plain functions.
"""
# mypy: disable-error-code="misc, override"

from typing import Any

import pytest
import torch
import xpulib
from recipe_problem import OPTIONS, Classifier, loader, trained_by_hand

from core import Accelerator, AcceleratorRegistry, Trainer
from core.errors import DeviceError


class XPUAccelerator(Accelerator):
    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> Any:
        return [xpulib.device(index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return xpulib.available_devices()

    @staticmethod
    def is_available() -> bool:
        return xpulib.is_available()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return xpulib.stats(device)

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        accelerator_registry.register("xpu", cls, description="XPU Accelerator - optimized for large-scale training.")


assert "xpu" in AcceleratorRegistry
expected = trained_by_hand()
for devices, device in ((1, "simx:0"), ("1", "simx:0"), ([1], "simx:1"), ("1,", "simx:1")):
    trainer = Trainer(accelerator="xpu", devices=devices, **OPTIONS)
    module = Classifier()
    trainer.fit(module, loader())
    module.assert_trained(expected, device, "float32")
    assert trainer.runtime.plan.accelerator.name == "xpu"


class PlainAccelerator(Accelerator):
    def parse_devices(devices: Any) -> Any:  # noqa: N805
        return devices

    def get_parallel_devices(devices: Any) -> Any:  # noqa: N805
        return [xpulib.device(index) for index in devices]

    def auto_device_count() -> int:
        return xpulib.available_devices()

    def is_available() -> bool:
        return xpulib.is_available()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return xpulib.stats(device)


for accelerator in (XPUAccelerator(), PlainAccelerator()):
    module = Classifier()
    Trainer(accelerator=accelerator, devices=1, **OPTIONS).fit(module, loader())
    module.assert_trained(expected, "simx:0", "float32")

for devices in (3, "2,", 0, "abc"):
    with pytest.raises(DeviceError, match=r"for accelerator 'xpu'.*available: devices 0 to 1\."):
        Trainer(accelerator="xpu", devices=devices, **OPTIONS)
print("trained by name")
