"""The operators: a boxed fallback that runs each on the host's kernel over the same bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from simdevice.libraries import library
from simdevice.tensors import device_view, host_view, module, on_device

__all__ = ["register"]

_HOST = torch.device("cpu")
_HOST_KEYS = DispatchKeySet(DispatchKey.CPU)
_HOST_AUTOCAST = DispatchKeySet(DispatchKey.AutocastCPU)
_aten: Any = torch.ops.aten

_TAKE_HOST_TENSORS = {_aten.index, _aten.index_put_, _aten._index_put_impl_}
"""Operators that every torch device serves with host tensors as some of their arguments."""


def register() -> None:
    """Register the device's kernels with torch."""
    library("_", "PrivateUse1").fallback(_fallback)
    aten = library("aten", "PrivateUse1")
    for overload in (
        _aten.as_strided.default,
        _aten.view.default,
        _aten._reshape_alias.default,
        _aten.set_.source_Storage_storage_offset,
    ):
        aten.impl(overload, _metadata_only(overload))
    for overload, kernel in (
        (_aten._copy_from.default, _copy_from),
        (_aten._copy_from_and_resize.default, _copy_from_and_resize),
        (_aten._to_copy.default, _to_copy),
        (_aten.resize_.default, _resize),
        (_aten.set_.source_Storage, _set_storage),
        (_aten.set_.source_Tensor, _set_tensor),
        (_aten.convolution_overrideable.default, _convolution),
        (_aten.convolution_backward_overrideable.default, _convolution_backward),
        (_aten.record_stream.default, _record_stream),
    ):
        aten.impl(overload, kernel)
    for overload in (_aten.native_layer_norm.default, _aten.native_group_norm.default):
        # Without these kernels torch takes them apart, with other roundings than the host's.
        aten.impl(overload, functools.partial(_fallback, overload))


class _HostCall:
    """One call with its arguments brought to the host, and the index of the device that it is made on."""

    def __init__(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.op = op
        self._devices: set[torch.device] = set()
        self.args = [self._to_host(arg) for arg in args]
        self.kwargs = {key: self._to_host(value) for key, value in kwargs.items()}
        indices = [device.index for device in self._devices if device != _HOST]
        self.index = indices[0] if indices else module().current_device()
        if len(indices) > 1 or (indices and _HOST in self._devices and op.overloadpacket not in _TAKE_HOST_TENSORS):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(sorted(map(str, self._devices)))}! (in {op})"
            )

    def _to_host(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            # A single number from the host may meet any device, as everywhere in torch.
            if value.device != _HOST or value.dim() > 0:
                self._devices.add(value.device)
            return host_view(value) if on_device(value) else value
        if isinstance(value, torch.device) and value.type == module().name:
            self._devices.add(torch.device(module().name, module().index_of(value)))
            return _HOST
        if isinstance(value, torch.Generator):
            raise RuntimeError(
                f"Expected a '{module().name}' device type for generator but found '{value.device.type}'"
            )
        if isinstance(value, list | tuple):
            return [self._to_host(item) for item in value]
        return value

    def run(self) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_HOST_AUTOCAST):
            if torch.Tag.nondeterministic_seeded in self.op.tags:
                with module().generator_of(self.index):
                    return self.op(*self.args, **self.kwargs)
            return self.op(*self.args, **self.kwargs)

    def to_device(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return device_view(value, self.index)
        if isinstance(value, list | tuple):
            return type(value)(self.to_device(item) for item in value)
        return value


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    call = _HostCall(op, args, kwargs)
    resizable = _empty_outputs(op, kwargs)
    call.kwargs.update({key: torch.empty(0, dtype=kwargs[key].dtype, device=_HOST) for key in resizable})
    results = call.run()
    for key in resizable:
        if call.kwargs[key].shape != kwargs[key].shape:
            _set_tensor(kwargs[key], call.to_device(call.kwargs[key]))
    returns = op._schema.returns
    if not returns:
        return None
    if len(returns) == 1:
        return _handed_over(call, returns[0], results, args, kwargs)
    return tuple(_handed_over(call, *pair, args, kwargs) for pair in zip(returns, results, strict=True))


def _empty_outputs(op: Any, kwargs: Mapping[str, Any]) -> list[str]:
    # torch hands over an empty `out=` to be resized; a relabelled storage can't be, so the host gets one that can.
    return [
        argument.name
        for argument in op._schema.arguments
        if argument.is_out and on_device(kwargs.get(argument.name)) and kwargs[argument.name].numel() == 0
    ]


def _handed_over(call: _HostCall, ret: Any, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One result as the device's: a fresh tensor, the argument that was written to, or a view of an argument."""
    if ret.alias_info is None:
        return call.to_device(value)
    source = _aliased_argument(call.op, ret, args, kwargs)
    if ret.alias_info.is_write:
        return source
    if isinstance(value, Tensor) and value.dtype == source.dtype:
        offset = source.storage_offset() + value.storage_offset()
        return _aten.as_strided.default.redispatch(_HOST_KEYS, source, value.size(), value.stride(), offset)
    return call.to_device(value)


def _aliased_argument(op: Any, ret: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set & ret.alias_info.before_set:
            return kwargs[argument.name] if argument.name in kwargs else args[position]
    raise NotImplementedError(f"{op}: its result aliases no argument")


# -- kernels of the device -----------------------------------------------------------------------------------------


def _metadata_only(op: Any) -> Callable[..., Tensor]:
    """The host's kernel on the device's own tensor: it touches shapes, not bytes."""
    return lambda *args, **kwargs: op.redispatch(_HOST_KEYS, *args, **kwargs)


def _set(tensor: Tensor, storage: torch.UntypedStorage, offset: int, size: Any, stride: Any) -> Any:
    return _aten.set_.source_Storage_storage_offset.redispatch(_HOST_KEYS, tensor, storage, offset, size, stride)


def _set_storage(tensor: Tensor, source: torch.UntypedStorage) -> Any:
    return _set(tensor, source, 0, [source.nbytes() // tensor.element_size()], [1])


def _set_tensor(tensor: Tensor, source: Tensor) -> Any:
    return _set(tensor, source.untyped_storage(), int(source.storage_offset()), source.size(), source.stride())


def _resize(tensor: Tensor, size: Any, *, memory_format: torch.memory_format | None = None) -> Any:
    wanted = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=memory_format)
    offset = int(tensor.storage_offset())
    if offset * tensor.element_size() + wanted.nbytes <= tensor.untyped_storage().nbytes():
        return _set(tensor, tensor.untyped_storage(), offset, wanted.size(), wanted.stride())
    fresh = torch.empty_strided(wanted.size(), wanted.stride(), dtype=tensor.dtype, device=_HOST)
    old = host_view(tensor)
    fresh.as_strided([old.numel()], [1]).copy_(old.as_strided([old.numel()], [1]))
    return _set_tensor(tensor, device_view(fresh, tensor.device.index))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    on_host = [host_view(tensor) if on_device(tensor) else tensor for tensor in (target, source)]
    with torch._C._AutoDispatchBelowAutograd():
        on_host[0].copy_(on_host[1])
    return target


def _copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    return _copy_from(source, target.resize_(source.shape))


def _to_copy(tensor: Tensor, *, non_blocking: bool = False, **options: Any) -> Any:
    # A copy to the host that needn't be waited for would go to pinned memory, which a Python backend can't provide.
    return _aten._to_copy.default.redispatch(_HOST_KEYS, tensor, **options)


def _convolution(*args: Any) -> Any:
    call = _HostCall(_aten.convolution.default, args, {})
    return call.to_device(call.run())


def _convolution_backward(grad: Tensor, source: Tensor, weight: Tensor, *options: Any) -> Any:
    *geometry, transposed, output_padding, groups, mask = options
    bias_size = [grad.shape[1]]
    args = (grad, source, weight, bias_size, *geometry, transposed, output_padding, groups, mask)
    call = _HostCall(_aten.convolution_backward.default, args, {})
    return call.to_device(call.run())


def _record_stream(tensor: Tensor, stream: torch.Stream) -> None:
    """The device has one stream, which is always done."""
