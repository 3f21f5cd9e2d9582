"""Objects of the processes of a run: as bytes, exchanged, and described by rank.

Tensors of any dtype are included: torch pickles those of float8 and uint16, but cannot read them. And NumPy is not
needed, with which torch exchanges objects without requiring it.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .torch_private import device_of_objects

_READ = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""The dtypes whose tensors torch's own unpickling reads."""


def pickled(obj: Any) -> bytes:
    """``obj`` as bytes for :func:`unpickled`. An exception that its pickling raises is not changed."""
    file = io.BytesIO()
    _Pickler(file).dump(obj)
    return file.getvalue()


def unpickled(payload: bytes) -> Any:
    """The object that :func:`pickled` got, in a process of the same run."""
    return pickle.loads(payload)


def gather_pickled(own: bytes, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The objects of all processes of a group, by rank. Each process passes its own object :func:`pickled`."""
    device = device_of_objects(group)
    sizes = [torch.empty(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(own)], device=device), group)
    lengths = [int(size) for size in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(own)] = _as_tensor(own)
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group)
    return [unpickled(_as_bytes(part[:length])) for part, length in zip(parts, lengths, strict=True)]


def broadcast_pickled(own: bytes | None, src: int) -> Any:
    """Receive the object of rank ``src`` of the default process group.

    Args:
        own: In rank ``src``, its object :func:`pickled`; ``None`` in the others.
        src: The rank.

    Returns:
        The object; ``None`` in rank ``src``, which has it.
    """
    device = device_of_objects(None)
    size = torch.tensor([len(own or b"")], device=device)
    dist.broadcast(size, src)
    content = torch.empty(int(size), dtype=torch.uint8, device=device) if own is None else _as_tensor(own).to(device)
    dist.broadcast(content, src)
    return unpickled(_as_bytes(content)) if own is None else None


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)  # which may be written to


def sendable(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy, whose memory is its values in order, so that it can be flattened and viewed as bytes.

    ``contiguous()`` is not enough: torch calls a tensor of one element contiguous whatever its stride, but views it as
    bytes only with stride 1; and a view may be conjugated or negated only when it is read.
    """
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    is_in_order = dense.numel() > 1 or all(stride == 1 for stride in dense.stride())
    return dense if is_in_order else dense.clone(memory_format=torch.contiguous_format)


def _as_bytes(tensor: Tensor) -> bytes:
    on_host = tensor.cpu()
    return ctypes.string_at(on_host.data_ptr(), on_host.numel())


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) not in (Tensor, nn.Parameter) or obj.dtype in _READ or obj.is_quantized:
            return NotImplemented
        if obj.layout is not torch.strided or obj.is_meta:
            return NotImplemented
        content = sendable(obj.detach()).view(-1).view(torch.uint8)
        return _restored, (content, obj.dtype, tuple(obj.shape), type(obj), obj.requires_grad)


def _restored(content: Tensor, dtype: torch.dtype, shape: tuple[int, ...], kind: Any, requires_grad: bool) -> Tensor:
    tensor = content.view(dtype).view(shape)
    restored: Tensor = kind(tensor, requires_grad) if kind is nn.Parameter else tensor.requires_grad_(requires_grad)
    return restored


def describe_tensor(tensor: Tensor) -> str:
    """Shape and dtype, and the layout of a tensor that is not dense: ``(2, 3) float32``."""
    facts = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    return facts if tensor.layout is torch.strided else f"{facts} {str(tensor.layout).removeprefix('torch.')}"


def by_rank(facts: Sequence[str], given_by: Sequence[int] | None = None) -> str:
    """Which ranks gave what: ``ranks 0, 2: (3,) float32; rank 1: (2,) float32``.

    Args:
        facts: What each rank gave, by rank.
        given_by: The ranks; all of the run unless given.
    """
    ranks: dict[str, list[str]] = {}
    for rank, fact in zip(range(len(facts)) if given_by is None else given_by, facts, strict=True):
        ranks.setdefault(fact, []).append(str(rank))
    return "; ".join(
        f"{'rank' if len(same) == 1 else 'ranks'} {', '.join(same)}: {fact}" for fact, same in ranks.items()
    )
