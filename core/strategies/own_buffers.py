"""The buffers of a module: those of process 0 in every process, or each process's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ..utilities.torch_private import non_persistent_buffers, uncompiled_names
from .base import Strategy
from .parallel import ParallelStrategy


def share_buffers(strategy: Strategy, module: nn.Module) -> None:
    """Give every process the buffers of process 0, which are also in checkpoints.

    After a training pass, the running means of batch norm are those of each process's own batches. Every process calls
    this; it does nothing where a strategy leaves each process its own buffers.
    """
    if strategy.world_size == 1 or not isinstance(strategy, ParallelStrategy):
        return
    if not (strategy.keeps_buffers_equal or strategy.equal_buffers_in_evaluation):
        return
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for buffer in module.buffers():
        if _is_whole(buffer):
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
    with torch.no_grad():
        for buffers in by_dtype.values():
            joined = torch.cat([buffer.reshape(-1).to(strategy.root_device) for buffer in buffers])
            strategy.broadcast_tensor(joined)
            parts = torch.split(joined, [one.numel() for one in buffers])
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view(buffer.shape))


def own_buffers(strategy: Strategy, module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers in which this process may differ from process 0, on the CPU; none where training keeps them equal.

    A checkpoint has only process 0's in its ``state_dict``.
    """
    if strategy.world_size == 1 or strategy.keeps_buffers_equal:
        return {}
    return {
        f"{prefix}.{name}" if prefix else name: buffer.detach().cpu().clone()
        for prefix, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name not in non_persistent_buffers(part) and _is_whole(buffer)
    }


def load_own_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Load what :func:`own_buffers` returned."""
    found = uncompiled_names(dict(module.named_buffers()))
    with torch.no_grad():
        for name, buffer in uncompiled_names(buffers).items():
            if name in found:
                found[name].copy_(buffer)


def _is_whole(buffer: torch.Tensor) -> bool:
    return type(buffer) is torch.Tensor and buffer.layout is torch.strided and not buffer.is_meta
