"""Steps, states and files, in one process."""

from __future__ import annotations

import os
from typing import Any

import torch
from stand_ins import recorded
from torch.utils._pytree import tree_map

from torch_xla import _module

__all__ = [
    "get_memory_info",
    "get_rng_state",
    "mark_step",
    "optimizer_step",
    "save",
    "set_rng_state",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
]


@recorded("xm.xla_device")
def xla_device(n: int | None = None) -> torch.device:
    """The device at ``n``, else the current one."""
    return torch.device("xla", _module.current_device() if n is None else n)


@recorded("xm.xla_device_hw")
def xla_device_hw(device: torch.device | str) -> str:
    """What the device really is."""
    return "CPU"


@recorded("xm.mark_step")
def mark_step(wait: bool = False) -> None:
    """Run what was gathered: nothing, since the simulation gathers nothing."""


@recorded("xm.wait_device_ops")
def wait_device_ops(devices: tuple[str, ...] = ()) -> None:
    """Wait for the devices."""
    _module.synchronize()


@recorded("xm.optimizer_step")
def optimizer_step(
    optimizer: torch.optim.Optimizer, barrier: bool = False, optimizer_args: dict[str, Any] | None = None
) -> Any:
    """The optimizer's step, and with ``barrier`` a step mark."""
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return loss


@recorded("xm.save")
def save(
    data: Any, file_or_path: str | os.PathLike[str], master_only: bool = True, global_master: bool = False
) -> None:
    """Save with all tensors on the host."""
    torch.save(tree_map(_to_host, data), file_or_path)


@recorded("xm.set_rng_state")
def set_rng_state(seed: int, device: str | None = None) -> None:
    """Seed the current device's generator."""
    _module.manual_seed(seed)


@recorded("xm.get_rng_state")
def get_rng_state(device: str | None = None) -> int:
    """The seed of the current device's generator."""
    return _module.initial_seed()


@recorded("xm.get_memory_info")
def get_memory_info(device: torch.device | str | None = None) -> dict[str, int]:
    """Memory in bytes."""
    free, total = _module.mem_get_info(device)
    return {"bytes_used": total - free, "bytes_limit": total, "peak_bytes_used": _module.max_memory_allocated(device)}


def _to_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
