"""Autocast on the device, with the operator lists that torch uses on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from simdevice.libraries import library

__all__ = ["register"]

_LOWER = """
    _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input conv_transpose3d.input conv_tbc
    bmm mm mv addmm addbmm baddbmm linear matmul linalg_vecdot prelu scaled_dot_product_attention
"""
_FULL = """
    mse_loss binary_cross_entropy nll_loss nll_loss_nd kl_div cosine_embedding_loss hinge_embedding_loss huber_loss
    smooth_l1_loss soft_margin_loss triplet_margin_loss poisson_nll_loss margin_ranking_loss multi_margin_loss
    multilabel_margin_loss prod cdist trace quantile nanquantile grid_sampler
"""
_WIDEST = "cat stack index_copy"

_KEY = DispatchKeySet(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]


def register(device_type: str) -> None:
    """Register the device's autocast kernels with torch."""
    library("_", "AutocastPrivateUse1").fallback(torch.library.fallthrough_kernel)
    aten = library("aten", "AutocastPrivateUse1")

    def lower(*operands: Any) -> torch.dtype:
        return torch.get_autocast_dtype(device_type)

    def full(*operands: Any) -> torch.dtype:
        return torch.float32

    for names, dtype in ((_LOWER, lower), (_FULL, full), (_WIDEST, _widest)):
        for name in names.split():
            packet, _, overload = name.partition(".")
            for op in _overloads(getattr(torch.ops.aten, packet), overload):
                aten.impl(op, _casting(op, dtype, device_type))


def _overloads(packet: Any, overload: str) -> list[Any]:
    names = [overload] if overload else [name for name in packet.overloads() if "out" not in name]
    return [getattr(packet, name) for name in names]


def _casting(op: Any, dtype: Callable[..., torch.dtype], device_type: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        wanted = dtype(*args)
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            return op(*_cast(args, wanted, device_type), **_cast(kwargs, wanted, device_type))

    return kernel


def _cast(value: Any, dtype: torch.dtype, device_type: str) -> Any:
    if isinstance(value, Tensor):
        eligible = value.is_floating_point() and value.device.type == device_type and value.dtype != torch.float64
        return value.to(dtype) if eligible else value
    if isinstance(value, dict):
        return {key: _cast(item, dtype, device_type) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype, device_type) for item in value)
    return value


def _widest(*args: Any) -> torch.dtype:
    tensors = [t for arg in args for t in (arg if isinstance(arg, list | tuple) else [arg]) if isinstance(t, Tensor)]
    return torch.float32 if any(t.dtype == torch.float32 for t in tensors) else tensors[0].dtype
