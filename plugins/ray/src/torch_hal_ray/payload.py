"""Functions, modules and results as bytes: classes of the user's script included, tensors on the CPU."""

from __future__ import annotations

import io
from typing import Any

import ray.cloudpickle
import torch

__all__ = ["pack", "unpack"]


def pack(obj: object) -> bytes:
    """``obj`` as bytes. Tensors that share memory still do so afterwards."""
    buffer = io.BytesIO()
    torch.save(obj, buffer, pickle_module=ray.cloudpickle)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """What :func:`pack` was given. The bytes come from a process of the same run."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
