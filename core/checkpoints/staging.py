"""A copy of a checkpoint in the memory of the host, which is written while training goes on."""

from __future__ import annotations

import copy
import ctypes
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError

__all__ = ["Staging"]

_FIXED = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size)


class Staging:
    """Copies checkpoints into the memory of the host; memory that is free again serves the next copy.

    Tensors that share memory share it in the copy as well, so that tied weights are written once.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.UntypedStorage]] = {}
        self._used: list[torch.UntypedStorage] = []

    def copy(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A copy that later changes of ``checkpoint`` do not reach.

        Raises:
            CheckpointError: An object in it cannot be copied.
        """
        copied: dict[str, Any] = _Copier(self).copy("checkpoint", checkpoint)
        self._free = {}  # of an earlier checkpoint with other sizes
        return copied

    def release(self) -> None:
        """The memory of the copy is free for the next one: nothing reads the copy any more."""
        self._free = {}
        for storage in self._used:
            self._free.setdefault(storage.nbytes(), []).append(storage)
        self._used = []

    def clear(self) -> None:
        """Give the memory back."""
        self._free, self._used = {}, []

    def _storage(self, size: int) -> torch.UntypedStorage:
        free = self._free.get(size)
        storage = free.pop() if free else torch.empty(size, dtype=torch.uint8).untyped_storage()
        self._used.append(storage)
        return storage


class _Copier:
    """One copy: what was met before is copied once."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._copies: dict[Any, Any] = {}
        self._kept: list[Any] = []  # alive, so that no other object gets the same id

    def copy(self, place: str, value: Any) -> Any:
        kind = type(value)
        if kind in _FIXED:
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        self._kept.append(value)
        copied: Any
        if isinstance(value, Tensor):
            copied = self._tensor(place, value)
        elif kind is dict or kind is OrderedDict:
            copied = self._copies[id(value)] = kind()
            for key, item in value.items():
                copied[self.copy(f"a key of {place}", key)] = self.copy(f"{place}[{key!r}]", item)
            if kind is OrderedDict:  # a module's state has its metadata as an attribute
                vars(copied).update({name: self.copy(f"{place}.{name}", item) for name, item in vars(value).items()})
        elif kind is list:
            copied = self._copies[id(value)] = []
            copied.extend(self.copy(f"{place}[{index}]", item) for index, item in enumerate(value))
        elif kind is tuple or kind is set:
            copied = kind(self.copy(f"{place}[{index}]", item) for index, item in enumerate(value))
        else:
            copied = _deep(place, value)
        self._copies[id(value)] = copied
        return copied

    def _tensor(self, place: str, tensor: Tensor) -> Tensor:
        copied: Any
        if type(tensor) is not Tensor and type(tensor) is not nn.Parameter and hasattr(tensor, "__tensor_flatten__"):
            # A tensor of several, such as a shard of one: torch's protocol says which.
            kind: Any = type(tensor)
            names, context = kind.__tensor_flatten__(tensor)
            found = {name: getattr(tensor, name) for name in names}  # since torch 2.13 the mesh of processes, too
            parts = {
                name: self._tensor(place, part.detach()) if isinstance(part, Tensor) else part
                for name, part in found.items()
            }
            copied = kind.__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
            return copied  # type: ignore[no-any-return]
        with torch.no_grad():
            copied = self._plain(place, tensor.detach())
        if type(tensor) is nn.Parameter:
            copied = nn.Parameter(copied, tensor.requires_grad)
        elif tensor.requires_grad:
            copied.requires_grad_()
        for name, item in vars(tensor).items():
            setattr(copied, name, self.copy(f"{place}.{name}", item))
        return copied  # type: ignore[no-any-return]

    def _plain(self, place: str, tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            copied: Tensor = _deep(place, tensor)
            return copied.cpu()
        if tensor.is_conj() or tensor.is_neg():
            return tensor.resolve_conj().resolve_neg().to("cpu", copy=True)
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return self._once(tensor)
        source = tensor.untyped_storage()
        key = "storage", source.data_ptr(), source.nbytes()
        if key not in self._copies:
            # All of the memory, of which the tensor may be a view: torch.save writes it all, too.
            target = self._copies[key] = self._staging._storage(source.nbytes())
            # Not Tensor.copy_: its threads wait for one another, and take five times as long on a busy machine.
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes())
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(self._copies[key], tensor.storage_offset(), tensor.size(), tensor.stride())

    def _once(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor on a device; the same for the same memory."""
        size = tensor.untyped_storage().data_ptr() if tensor.numel() else 0
        key = tensor.device, size, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype
        if size == 0:
            return tensor.to("cpu", copy=True) if tensor.device.type != "meta" else tensor
        if key not in self._copies:
            self._copies[key] = tensor.to("cpu", copy=True)
        return self._copies[key].view_as(self._copies[key])  # type: ignore[no-any-return]


def _deep(place: str, value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # any class may be in a checkpoint
        raise CheckpointError(
            f"{place} is of type {type(value).__name__}, which cannot be copied for a write in the background: "
            f"{type(error).__name__}: {error}. Save tensors and plain values, or set checkpoint_io='torch'."
        ) from error
