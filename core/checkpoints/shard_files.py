"""The files of shards, written and read with ``torch.distributed.checkpoint``.

Its own reader loads the file ``.metadata`` with plain :mod:`pickle`; this one runs no code that the files may hold. The
writer raises errors with their cause and a remedy.
"""

from __future__ import annotations

import io
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import metadata as facts
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import CheckpointError
from ..utilities.torch_private import PATH_OF_LAYOUT, private_metadata_classes
from .disk_remedies import UNCHANGED, remedy
from .manifest import FileRecord, Manifest
from .safe_unpickling import AllowedUnpickler, refuse_compressed

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
    """The content of the shards in ``directory``, and where it is.

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
        raise CheckpointError(f"the entry {read_item.dest_index.fqn!r} of the shards is not a tensor.")


# -- writing ---------------------------------------------------------------------------------------------------------


def write_shards(
    shards: dict[str, Tensor], staged: Path, path: str | os.PathLike[str], group: dist.ProcessGroup | None
) -> dict[str, FileRecord]:
    """Write this process's shards; every process calls it.

    Args:
        shards: The sharded tensors, by their keys.
        staged: The directory to write to.
        path: Of the checkpoint, for messages.
        group: The processes that write together; ``None`` for those of the default group.

    Returns:
        The files that this process has written, by their names.

    Raises:
        CheckpointError: A process cannot write its shards; raised in every process.
    """
    writer = FileSystemWriter(staged)
    writer.fs = _Files()
    try:
        save(shards, storage_writer=writer, process_group=group)
    except (Exception, CheckpointException) as error:
        own: dict[int, Any] = {_rank(): (error, None)}
        # Of several, a full disk has a remedy.
        failures = [(cause, rank) for rank, (cause, _) in getattr(error, "failures", own).items()]
        cause, rank = min(failures, key=lambda failure: (not isinstance(failure[0], OSError), failure[1]))
        why = (
            f"{cause}.{remedy(cause)}{UNCHANGED}" if isinstance(cause, OSError) else f"{type(cause).__name__}: {cause}"
        )
        raise CheckpointError(f"checkpoint {os.fspath(path)} cannot be written: rank {rank}: {why}") from error
    files = [*staged.glob(f"__{_rank()}_*"), *([staged / METADATA] if _rank() == 0 else [])]
    return {file.name: FileRecord.of(file) for file in files}


class _Files(FileSystem):
    """torch's writer, which raises the original OSError: ``torch.save`` replaces it by an error without the cause."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with _Noting(io.FileIO(path, mode)) as noting:
            try:
                yield noting
            except RuntimeError:
                if noting.error is not None:
                    raise noting.error from None
                raise


class _Noting(io.BufferedWriter):
    """A file for writing that keeps the error that stopped it."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
