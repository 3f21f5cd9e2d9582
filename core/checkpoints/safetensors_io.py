"""The CheckpointIO that writes tensors in safetensors' format, for other programs."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigurationError
from .base import CheckpointIO, check_arguments
from .checksums import files_are_mapped, read_while_verifying
from .locations import committed_directory, naming_the_newest_whole, store_of
from .manifest import SHARD, FileRecord, Manifest
from .safe_unpickling import refuse_unreadable
from .torch_io import read_shard, write_shard

_NAME = "safetensors"
_FILE = "tensors.safetensors"
_MAPPED = 1 << 26
"""Bytes of the file that are mapped into memory at a time, beyond those of one tensor."""
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""How the package tells an error of the operating system."""

Place = tuple[Any, ...]


def write_safetensors(
    tensors: dict[str, Tensor], file: Path, path: str | os.PathLike[str], same: Mapping[str, str] | None = None
) -> None:
    """Write tensors to ``file`` in safetensors' format, readable for the users that the umask allows.

    Args:
        tensors: The tensors by name, which do not share memory.
        file: A file of this machine, which is moved to ``path`` later.
        path: Named in errors.
        same: For names that are not written, the name of the same tensor.

    Raises:
        OSError: The system cannot write it.
        CheckpointError: safetensors cannot write it.
    """
    from safetensors.torch import save_file

    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(tensors, file, metadata={"format": "pt", **(same or {})})
    except OSError:
        raise
    except Exception as error:  # its own class, also for a full disk
        if (found := _NUMBER.search(str(error))) is not None:
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
        raise CheckpointError(f"checkpoint {os.fspath(path)} cannot be written: {error}") from error
    file.chmod(mode)  # the package lets only this user read it


def read_safetensors(file: Path, map_location: Any = None) -> dict[str, Tensor]:
    """The tensors in a file of safetensors' format, moved as ``torch.load(map_location=...)`` does.

    They are copies of the file that the package maps into memory, except as
    :func:`~core.checkpoints.checksums.tensors_in_files` says.

    Raises:
        Exception: Of the package, if the file is damaged.
    """
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    while True:
        copied = 0
        with safe_open(file, framework="pt") as mapped:
            names = list(mapped.keys())
            for name in names[len(found) :]:
                found[name] = _move(mapped.get_tensor(name), map_location)
                if files_are_mapped.get():
                    continue
                found[name] = found[name].clone()
                copied += found[name].nbytes
                if copied > _MAPPED:
                    break  # what was read counts as memory of this process until the file is closed
        if len(found) == len(names):
            return found


class SafetensorsCheckpointIO(CheckpointIO):
    """A directory with tensors in safetensors' format, the remaining values as torch writes them, and a manifest.

    In ``tensors.safetensors`` each tensor is named by its keys in the checkpoint joined by dots, such as
    ``state_dict.layer.weight``. Of tied tensors one is written, and they are tied again when they are loaded. Needs the
    package safetensors.

    Raises:
        ConfigurationError: It is not installed.
    """

    keeps_views = False  # the format has no strides

    def __init__(self) -> None:
        try:
            importlib.import_module("safetensors.torch")
        except ImportError as error:
            raise ConfigurationError(
                f"checkpoint_io='safetensors': safetensors cannot be imported ({error}). Run: pip install safetensors"
            ) from error

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """See the base class; a directory at ``path`` that is not a checkpoint is not replaced.

        Raises:
            CheckpointError: The checkpoint cannot be written, or holds a value that could not be read back.
            ConfigurationError: ``storage_options`` is not ``None``.
            WrongTypeError: ``checkpoint`` is not a dict, or ``path`` is not a path.
        """
        self.check_checkpoint(checkpoint, path, storage_options)
        taken = _Taken()
        content = taken.take(checkpoint, ())
        with committed_directory(path) as directory:
            write_safetensors(taken.tensors, directory / _FILE, path)
            rest = {"content": content, "places": taken.places}
            files = {_FILE: FileRecord.of(directory / _FILE), SHARD: write_shard(rest, directory / SHARD, path)}
            Manifest.describe(checkpoint.get("core"), files, _NAME).write(directory)

    def check_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """See the base class."""
        check_arguments(type(self).__name__, checkpoint, storage_options)
        refuse_unreadable(checkpoint)
        store_of(path)

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
        """See the base class. During a save to the same path, it returns the old checkpoint or the new one."""
        with naming_the_newest_whole(path):
            return store_of(path).read(lambda directory: self._read(directory, map_location))

    def _read(self, directory: Path, map_location: Any) -> dict[str, Any]:
        manifest = Manifest.read(directory)
        manifest.check_written_by(_NAME, SHARD, directory)
        return read_while_verifying(
            lambda stop: manifest.verify(directory, stop=stop),
            lambda: self._read_files(directory, manifest, map_location),
        )

    def _read_files(self, directory: Path, manifest: Manifest, map_location: Any) -> dict[str, Any]:
        rest = read_shard(directory, map_location)
        try:
            tensors = read_safetensors(manifest.file(directory, _FILE), map_location)
            checkpoint: dict[str, Any] = rest["content"]
            for place, (name, kind) in rest["places"].items():
                _put(checkpoint, place, _as(tensors[name], kind))
        except Exception as error:  # garbled bytes behind right sums may raise anything
            raise CheckpointError(
                f"{directory} cannot be loaded with map_location={map_location!r}: {type(error).__name__}: {error}"
            ) from error
        return checkpoint


class _Taken:
    """The tensors of a checkpoint that safetensors' format can hold, by name, and where they belong."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.places: dict[Place, tuple[str, str]] = {}
        self._names: dict[Any, str] = {}

    def take(self, value: Any, place: Place) -> Any:
        """``value`` with ``None`` in place of each of them."""
        kind = type(value)
        if kind in (Tensor, nn.Parameter) and not vars(value) and _is_plain(value):
            self.places[place] = self._name(value.detach(), place), _kind(value)
            return None
        if kind is list:
            return [self.take(item, (*place, index)) for index, item in enumerate(value)]
        if isinstance(value, dict):
            items = {key: self.take(item, (*place, key)) for key, item in value.items()}
            if kind is dict:
                return items
            replaced = kind.copy(value)
            vars(replaced).update(vars(value))
            replaced.update(items)
            return replaced
        return value

    def _name(self, tensor: Tensor, place: Place) -> str:
        key = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.size(), tensor.stride()
        if tensor.numel() and key in self._names:
            return self._names[key]
        name = ".".join(map(str, place))
        while name in self.tensors or name == "__metadata__":  # which the format uses itself
            name += "'"
        self._names[key] = name
        # Views of the same memory are written each by itself: the format knows no strides.
        shares = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.itemsize
        self.tensors[name] = tensor.clone(memory_format=torch.contiguous_format) if shares else tensor.contiguous()
        return name


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
        and tensor.device.type != "meta"
        and tensor.dtype in _DTYPES
    )


_DTYPES = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""What the format has; other tensors are among the remaining values."""


def _kind(tensor: Tensor) -> str:
    kind = "parameter" if isinstance(tensor, nn.Parameter) else "tensor"
    return f"{kind} that requires grad" if tensor.requires_grad else kind


def _as(found: Tensor, kind: str) -> Tensor:
    requires_grad = kind.endswith("that requires grad")
    if kind.startswith("parameter"):
        return nn.Parameter(found, requires_grad)
    return found.detach().requires_grad_() if requires_grad else found


def _move(tensor: Tensor, map_location: Any) -> Tensor:
    if map_location is None:
        return tensor
    if isinstance(map_location, str | torch.device):
        return tensor.to(map_location)
    place = map_location.get("cpu", "cpu") if isinstance(map_location, dict) else None
    if place is None:
        moved = map_location(tensor.untyped_storage(), "cpu")
        place = "cpu" if moved is None else cast(torch.UntypedStorage, moved).device
    return tensor.to(place)


def _put(content: Any, place: Place, tensor: Tensor) -> None:
    for part in place[:-1]:
        content = content[part]
    content[place[-1]] = tensor
