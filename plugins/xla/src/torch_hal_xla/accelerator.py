"""The devices of torch_xla as an accelerator."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from torch_hal import Accelerator
from torch_hal.errors import BackendError
from torch_hal_xla import detect

__all__ = ["XLAAccelerator"]

logger = logging.getLogger(__name__)

_UNSUPPORTED = {
    "float16": "torch_xla's devices compute in bfloat16",
    "loss_scaling": "bfloat16 has float32's range, so there is nothing to scale",
}
_CPU_UNSUPPORTED = {
    "collectives": "with PJRT_DEVICE=CPU torch_xla's processes are threads, which deadlock",
    "memory_stats": "with PJRT_DEVICE=CPU torch_xla does not count memory",
}
_STATS = {
    "memory_allocated_bytes": "bytes_used",
    "memory_allocated_peak_bytes": "peak_bytes_used",
    "memory_total_bytes": "bytes_limit",
}
_STATE_BYTES = 8


class XLAAccelerator(Accelerator):
    """The devices of torch_xla: TPUs and others.

    torch_xla collects operations, and runs them together at the end of a step or when a value is read.

    ``PJRT_DEVICE`` selects the kind of device. With ``PJRT_DEVICE=CPU`` it is the host, for tests.
    """

    name = "xla"
    out_of_memory_texts: ClassVar[tuple[str, ...]] = ("RESOURCE_EXHAUSTED",)
    default_strategy = "single_xla"
    default_parallel_strategy = "xla"
    unsupported: ClassVar[Mapping[str, str]] = {
        **_UNSUPPORTED,
        **(_CPU_UNSUPPORTED if detect.runtime_type(os.environ) == "CPU" else {}),
    }

    def is_available(self) -> bool:
        """Return whether there is a device. Never raises."""
        try:
            return detect.count() > 0
        except (OSError, ValueError):
            logger.warning("counting XLA devices failed; they are treated as unavailable", exc_info=True)
            return False

    def auto_device_count(self) -> int:
        """Return the number of devices."""
        return detect.count()

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the devices at these indices."""
        return [torch.device("xla", index) for index in devices]

    def import_backend(self) -> None:
        """Import torch_xla; its runtime starts when a device is used."""
        import torch_xla  # noqa: F401

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current device of this process, and seed its generator like the host's.

        ``torch.manual_seed`` alone does not seed it.

        Raises:
            BackendError: This process ran a backward pass before torch_xla's runtime started.
        """
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        xr.global_runtime_device_count()  # starts the runtime; in SPMD mode creating a device does not
        torch_xla.device(device.index)
        _require_backward(device)
        xm.set_rng_state(torch.initial_seed(), str(device))

    def synchronize(self, device: torch.device) -> None:
        """Wait for all running work, on all devices of this process; collected operations are not run."""
        import torch_xla.core.xla_model as xm

        del device  # torch_xla has its own names for devices
        xm.wait_device_ops()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return ``memory_allocated_bytes``, ``memory_allocated_peak_bytes`` and ``memory_total_bytes`` of ``device``.

        Empty if torch_xla does not count memory.
        """
        if "memory_stats" in self.unsupported:
            return {}
        import torch_xla.core.xla_model as xm

        info: Mapping[str, int] = xm.get_memory_info(str(device))
        return {name: info[theirs] for name, theirs in _STATS.items() if theirs in info}

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        """Return the state of the generator of ``device``: 8 bytes, on the CPU."""
        import torch_xla.core.xla_model as xm

        state = xm.get_rng_state(str(device))
        # Draws since the last step are part of the graph; setting the state makes later draws depend on it alone.
        xm.set_rng_state(state, str(device))
        return torch.tensor(list(state.to_bytes(_STATE_BYTES, "little")), dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Set the state of the generator of ``device``."""
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(int.from_bytes(bytes(state.tolist()), "little"), str(device))

    def fork_unsafe_reason(self) -> str | None:
        """Return that torch_xla is loaded: its threads do not survive a fork."""
        return "torch_xla is already loaded"


def _require_backward(device: torch.device) -> None:
    """Check that torch's backward threads can use ``device``, also where the program computes no gradients now."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            torch.zeros(1, device=device, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise BackendError(
            f"accelerator='xla': this process ran a backward pass before torch_xla's runtime started, so torch cannot "
            f"run one on {device}: {str(error).partition(' INTERNAL')[0]}. Create a Trainer or Runtime on 'xla' before "
            "any backward pass on the CPU, or use a separate process."
        ) from error
