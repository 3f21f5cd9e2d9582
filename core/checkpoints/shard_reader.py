"""Reading the shards that ``torch.distributed.checkpoint`` has written, without running code that they may hold.

Its own reader loads the file ``.metadata`` with plain :mod:`pickle`.
"""

from __future__ import annotations

import io
import math
import pathlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint import metadata as facts
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from ..errors import CheckpointError
from ..utilities.torch_private import PATH_OF_LAYOUT, private_metadata_classes
from .manifest import FileRecord, Manifest
from .safe_unpickling import AllowedUnpickler, refuse_compressed

__all__ = ["METADATA", "ShardPlanner", "ShardReader", "read_facts"]

METADATA = ".metadata"
"""The file that says which tensor is where."""

_StorageInfo, _MemoryFormat = private_metadata_classes()
_CLASSES: tuple[type, ...] = (
    facts.ChunkStorageMetadata,
    facts.TensorProperties,
    facts.TensorStorageMetadata,
    facts.BytesStorageMetadata,
    facts.StorageMeta,
    facts.Metadata,
    facts.MetadataIndex,
    _MemoryFormat,
    _StorageInfo,
)
_PATHS = ("pathlib", "pathlib._local")
"""The module that a pickle names for a path; the second is Python 3.13's."""
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(kind.__module__, kind.__qualname__): kind for kind in _CLASSES},
    ("torch", "Size"): lambda sizes: torch.Size(sizes),
    PATH_OF_LAYOUT: lambda name: _layout(name),
    **{(module, "PosixPath"): lambda *parts: pathlib.PurePosixPath(*parts) for module in _PATHS},
    **{(module, "WindowsPath"): lambda *parts: pathlib.PureWindowsPath(*parts) for module in _PATHS},
}


def _layout(name: Any) -> torch.layout:
    layout = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(layout, torch.layout):
        raise ValueError(f"{name!r} is not a layout")
    return layout


def read_facts(directory: Path, manifest: Manifest, tensors_only: bool = True) -> Metadata:
    """What the shards in ``directory`` hold, and where.

    Args:
        directory: The checkpoint.
        manifest: Its manifest.
        tensors_only: Whether an entry that is no tensor is refused. It is not read in either case.

    Raises:
        CheckpointError: The file is damaged, contains what does not belong there, or refers to other files.
    """
    path = manifest.file(directory, METADATA)
    try:
        content = AllowedUnpickler(io.BytesIO(path.read_bytes()), str(path), _ALLOWED).load()
        _check(content, manifest.files, tensors_only)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    checked: Metadata = content
    return checked


def _check(content: Any, files: Mapping[str, FileRecord], tensors_only: bool) -> None:
    if not isinstance(content, Metadata):
        raise ValueError(f"it holds a {type(content).__name__}")
    promised = 0
    for key, fact in content.state_dict_metadata.items():
        if not tensors_only and isinstance(fact, facts.BytesStorageMetadata):
            continue
        if not isinstance(key, str) or not isinstance(fact, TensorStorageMetadata):
            raise ValueError(f"its entry {key!r} is not a tensor")
        if any(size < 0 for size in fact.size):
            raise ValueError(f"its entry {key!r} has the size {tuple(fact.size)}")
        if sum(math.prod(chunk.sizes) for chunk in fact.chunks) != math.prod(fact.size):
            raise ValueError(f"the chunks of its entry {key!r} do not add up to the size {tuple(fact.size)}")
        promised += math.prod(fact.size) * fact.properties.dtype.itemsize
    stored, places = 0, set()
    for index, place in content.storage_data.items():
        if not isinstance(index, MetadataIndex) or not isinstance(place, _StorageInfo):
            raise ValueError("its list of places has another form")
        if place.relative_path not in files:
            raise ValueError(f"it refers to {place.relative_path!r}, which is not a file of this checkpoint")
        end = place.offset + place.length
        if place.offset < 0 or place.length < 0 or end > files[place.relative_path].size:
            raise ValueError(f"it refers to bytes {place.offset} to {end} of {place.relative_path}, which has fewer")
        if getattr(place, "transform_descriptors", None):
            raise ValueError(f"{place.relative_path} is encoded as {place.transform_descriptors}")
        stored += place.length
        places.add((place.relative_path, place.offset, end))
    if len(places) < len(content.storage_data) or any(
        one[0] == other[0] and one[2] > other[1] for one, other in pairwise(sorted(places))
    ):
        raise ValueError("two of its entries refer to the same bytes")
    if promised > stored:
        raise ValueError(f"its tensors take {promised} bytes, and the shards have {stored}")


class ShardReader(FileSystemReader):
    """Reads shards as ``torch.distributed.checkpoint`` does, from a metadata file that was checked before.

    Args:
        directory: The checkpoint.
        content: What :func:`read_facts` returned.
    """

    def __init__(self, directory: Path, content: Metadata) -> None:
        super().__init__(directory)
        self._content = content

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checked content, not the file's."""
        del args, kwargs
        if getattr(self._content, "storage_meta", None) is None:
            self._content.storage_meta = StorageMeta()
        return self._content

    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        with io.BufferedReader(_Part(file, sinfo.offset, sinfo.length)) as checked:
            refuse_compressed(checked, str(Path(self.path) / sinfo.relative_path))
        part: IO[bytes] = super()._slice_file(file, sinfo)
        return part


class _Part(io.RawIOBase):
    """A part of a file. torch's own does not serve all that :mod:`zipfile` asks."""

    def __init__(self, file: IO[bytes], offset: int, length: int) -> None:
        self._file, self._offset, self._length = file, offset, length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence, self._length))
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        self._file.seek(self._offset + self._position)
        data = self._file.read(max(0, min(len(buffer), self._length - self._position)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class ShardPlanner(DefaultLoadPlanner):
    """Loads tensors, and nothing that would have to be unpickled."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Refuse it: torch's own planner would unpickle the bytes.

        Raises:
            CheckpointError: Always.
        """
        del value
        raise CheckpointError(f"the entry {read_item.dest_index.fqn!r} of the shards is not a tensor.")
