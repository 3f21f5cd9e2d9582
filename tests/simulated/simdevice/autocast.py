"""Autocast on the device, with the same policy as torch's own on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from simdevice.libraries import library

__all__ = ["register"]

_LOWER = frozenset(
    [
        "conv1d",
        "conv1d.padding",
        "conv2d",
        "conv2d.padding",
        "conv3d",
        "conv3d.padding",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d.input",
        "conv_transpose3d.input",
        "_convolution.deprecated",
        "bmm",
        "mm",
        "addmm",
        "addbmm",
        "baddbmm",
        "_addmm_activation",
        "linear",
        "matmul",
        "linalg_vecdot",
        "prelu",
        "scaled_dot_product_attention",
        "_native_multi_head_attention",
        "mkldnn_rnn_layer",
    ]
)
"""Operators that compute in the lower precision."""
_WIDEST = frozenset(("cat", "stack", "index_copy"))
"""Operators that compute in the widest precision of their tensors; every other one here computes in float32."""

_KEY = DispatchKeySet(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]


def register(device_type: str) -> None:
    """Register the device's autocast kernels with torch."""
    library("_", "AutocastPrivateUse1").fallback(torch.library.fallthrough_kernel)
    aten = library("aten", "AutocastPrivateUse1")

    def lower(args: Any) -> torch.dtype:
        return torch.get_autocast_dtype(device_type)

    def full(args: Any) -> torch.dtype:
        return torch.float32

    for name in _known_to_autocast():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        dtype = lower if name in _LOWER else _widest if name in _WIDEST else full
        aten.impl(op, _casting(op, dtype, device_type))


def _known_to_autocast() -> list[str]:
    return [
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")
    ]


def _casting(op: Any, dtype: Callable[[Any], torch.dtype], device_type: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        wanted = dtype(args)
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


def _widest(args: Any) -> torch.dtype:
    tensors = [t for arg in args for t in (arg if isinstance(arg, list | tuple) else [arg]) if isinstance(t, Tensor)]
    return torch.float32 if any(t.dtype == torch.float32 for t in tensors) else tensors[0].dtype
