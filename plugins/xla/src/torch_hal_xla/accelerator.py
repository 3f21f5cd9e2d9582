"""What torch_xla runs on, as an accelerator."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from core import Accelerator
from core.errors import BackendError
from torch_hal_xla import detect

__all__ = ["XLAAccelerator"]

logger = logging.getLogger(__name__)

_LACKS = {
    "float16": "what torch_xla runs on computes in bfloat16",
    "loss_scaling": "bfloat16 has float32's range, so there is nothing to scale",
}
_CPU_LACKS = {
    "collectives": "with PJRT_DEVICE=CPU torch_xla's processes are threads, which wait for one another for ever",
    "memory_stats": "with PJRT_DEVICE=CPU torch_xla keeps no account of memory",
}
_STATS = {
    "memory_allocated_bytes": "bytes_used",
    "memory_allocated_peak_bytes": "peak_bytes_used",
    "memory_total_bytes": "bytes_limit",
}
_STATE_BYTES = 8


class XLAAccelerator(Accelerator):
    """The devices of torch_xla: TPU, and what else it runs on.

    A computation is gathered as it is written down, and run as a whole where a step ends or a value is looked at.

    Which kind of device is used is said by ``PJRT_DEVICE``. With ``PJRT_DEVICE=CPU`` it is the host, for tests.
    """

    name = "xla"
    default_strategy = "single_xla"
    default_parallel_strategy = "xla"
    lacks: ClassVar[Mapping[str, str]] = {**_LACKS, **(_CPU_LACKS if detect.runtime_type(os.environ) == "CPU" else {})}

    def is_available(self) -> bool:
        """Whether there is a device. Never raises."""
        try:
            return detect.count() > 0
        except (OSError, ValueError):
            logger.warning("the XLA devices can't be counted", exc_info=True)
            return False

    def auto_device_count(self) -> int:
        """How many devices there are."""
        return detect.count()

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """The devices at these indices."""
        return [torch.device("xla", index) for index in devices]

    def import_backend(self) -> None:
        """Import torch_xla; its runtime starts when a device is used."""
        import torch_xla  # noqa: F401

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` this process's current one, its generator seeded as the host's is.

        ``torch.manual_seed`` alone does not reach it.

        Raises:
            BackendError: A backward pass was run in this process before torch_xla's runtime started.
        """
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        xr.global_runtime_device_count()  # starts the runtime, which naming a device does not in SPMD mode
        torch_xla.device(device.index)
        _require_backward(device)
        xm.set_rng_state(torch.initial_seed(), str(device))

    def synchronize(self, device: torch.device) -> None:
        """Wait until all that was run is done, also on other devices of this process; what is gathered is not run."""
        import torch_xla.core.xla_model as xm

        del device  # of which torch_xla wants another name than torch's
        xm.wait_device_ops()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Memory of ``device``: ``memory_allocated_bytes``, ``memory_allocated_peak_bytes``, ``memory_total_bytes``.

        Nothing where torch_xla keeps no account of it.
        """
        if "memory_stats" in self.lacks:
            return {}
        import torch_xla.core.xla_model as xm

        info: Mapping[str, int] = xm.get_memory_info(str(device))
        return {name: info[theirs] for name, theirs in _STATS.items() if theirs in info}

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        """The state of the generator of ``device``: 8 bytes, on the CPU."""
        import torch_xla.core.xla_model as xm

        state = xm.get_rng_state(str(device))
        # What was drawn since the last step lives on in the graph: from here on, the state alone says what is drawn.
        xm.set_rng_state(state, str(device))
        return torch.tensor(list(state.to_bytes(_STATE_BYTES, "little")), dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Put the generator of ``device`` back into ``state``."""
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(int.from_bytes(bytes(state.tolist()), "little"), str(device))

    def fork_unsafe_reason(self) -> str | None:
        """That torch_xla is loaded: its threads do not survive a fork."""
        return "torch_xla is loaded in it"


def _require_backward(device: torch.device) -> None:
    """Make sure that torch's threads for backward passes know ``device``."""
    weight = torch.zeros(1, device=device, requires_grad=True)
    try:
        weight.sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise BackendError(
            f"accelerator='xla': torch cannot run backward passes on {device} in this process any more, since it "
            "started its threads for them, at the first one, before torch_xla's runtime: "
            f"{str(error).partition(' INTERNAL')[0]}. Valid: a Trainer or Runtime on 'xla' before any backward pass on "
            "the CPU, or a process of its own."
        ) from error
