"""Steps, states, files, and collectives."""

from __future__ import annotations

import os
import zlib
from typing import Any

import torch
from stand_ins import recorded
from torch.utils._pytree import tree_map

from torch_xla import _module, processes

__all__ = [
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_SUM",
    "all_gather",
    "all_reduce",
    "broadcast_master_param",
    "get_memory_info",
    "get_rng_state",
    "mark_step",
    "optimizer_step",
    "rendezvous",
    "save",
    "set_rng_state",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
]

REDUCE_SUM, REDUCE_MUL, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "min", "max"

_COMBINE: dict[str, Any] = {
    REDUCE_SUM: torch.add,
    REDUCE_MUL: torch.mul,
    REDUCE_MIN: torch.minimum,
    REDUCE_MAX: torch.maximum,
}


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
    """Seed the device's generator."""
    _generator(device).manual_seed(seed)


@recorded("xm.get_rng_state")
def get_rng_state(device: str | None = None) -> int:
    """What the device's generator was seeded with, else a number that depends on all that was drawn since."""
    generator = _generator(device)
    fresh = torch.Generator().manual_seed(generator.initial_seed())
    if torch.equal(fresh.get_state(), generator.get_state()):
        return generator.initial_seed()
    return zlib.crc32(bytes(generator.get_state().tolist()))


@recorded("xm.get_memory_info")
def get_memory_info(device: torch.device | str | None = None) -> dict[str, int]:
    """Memory in bytes."""
    free, total = _module.mem_get_info(device)
    return {"bytes_used": total - free, "bytes_limit": total, "peak_bytes_used": _module.max_memory_allocated(device)}


@recorded("xm.all_reduce")
def all_reduce(
    reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True
) -> torch.Tensor | list[torch.Tensor]:
    """What all processes have, combined and scaled: a new tensor; the tensors of a list are changed in place."""
    if isinstance(inputs, torch.Tensor):
        return _reduced(reduce_type, inputs, scale)
    for tensor in inputs:
        tensor.copy_(_reduced(reduce_type, tensor, scale))
    return list(inputs)


def _reduced(reduce_type: str, tensor: torch.Tensor, scale: float) -> torch.Tensor:
    first, *others = processes.gather(tensor)
    for other in others:
        first = _COMBINE[reduce_type](first, other)
    return (first if scale == 1.0 else first * scale).to(tensor.device)


@recorded("xm.all_gather")
def all_gather(value: torch.Tensor, dim: int = 0, groups: Any = None, pin_layout: bool = True) -> torch.Tensor:
    """What all processes have, joined along ``dim``."""
    return torch.cat(processes.gather(value), dim).to(value.device)


@recorded("xm.broadcast_master_param")
def broadcast_master_param(model: torch.nn.Module) -> None:
    """Parameters and buffers as process 0 has them."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(processes.gather(tensor)[0])


@recorded("xm.rendezvous")
def rendezvous(tag: str, payload: bytes = b"", replicas: tuple[int, ...] = ()) -> list[bytes]:
    """Wait for all processes; what each has brought."""
    sizes = [int(size) for size in processes.gather(torch.tensor([len(payload)]))]
    padded = torch.tensor([*payload, *bytes(max(sizes) - len(payload))], dtype=torch.uint8)
    return [bytes(part[:size].tolist()) for part, size in zip(processes.gather(padded), sizes, strict=True)]


def _generator(device: str | None) -> torch.Generator:
    index = None if device is None else torch.device(device).index
    return _module.default_generators[_module.current_device() if index is None else index]


def _to_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
