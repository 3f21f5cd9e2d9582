"""The buffers of a module that every process has: those of process 0."""

from __future__ import annotations

import torch
from torch import nn

from core.strategies.base import Strategy
from core.strategies.parallel import ParallelStrategy

__all__ = ["share_buffers"]


def share_buffers(strategy: Strategy, module: nn.Module) -> None:
    """Give every process the buffers of process 0, as each training pass does: they are those of checkpoints.

    After a training pass, the running means of batch norm are those of each process's own batches. Every process calls
    this; it does nothing where a strategy leaves each process its own buffers.
    """
    if strategy.world_size == 1 or not (isinstance(strategy, ParallelStrategy) and strategy.keeps_buffers_equal):
        return
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for buffer in module.buffers():
        if type(buffer) is torch.Tensor and buffer.layout is torch.strided:
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
    with torch.no_grad():
        for buffers in by_dtype.values():
            joined = torch.cat([buffer.reshape(-1).to(strategy.root_device) for buffer in buffers])
            strategy.broadcast_tensor(joined)
            parts = torch.split(joined, [one.numel() for one in buffers])
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view(buffer.shape))
