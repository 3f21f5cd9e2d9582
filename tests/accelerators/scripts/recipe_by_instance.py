"""The custom accelerator of the founding documents, its methods as plain functions, handed over as an instance."""
# mypy: disable-error-code="misc, override"

from typing import Any

import torch
import xpulib
from recipe_problem import OPTIONS, Classifier, loader, trained_by_hand

from core import Accelerator, Trainer


class XPUAccelerator(Accelerator):
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


trainer = Trainer(accelerator=XPUAccelerator(), devices=2, **OPTIONS)
module = Classifier()
trainer.fit(module, loader())

rank = trainer.runtime.process_index
module.assert_trained(trained_by_hand(2), f"simx:{rank}", "float32", "simccl")
assert trainer.runtime.strategy.accelerator.get_device_stats(trainer.runtime.device)["memory_allocated_bytes"] >= 0
assert xpulib.calls[-1] == "stats"
if rank == 0:  # the other is told what rank 0 has found
    assert {"is_available", "device"} <= set(xpulib.calls)
print(f"rank {rank} of {trainer.runtime.num_processes}: trained on {trainer.runtime.device}", flush=True)
