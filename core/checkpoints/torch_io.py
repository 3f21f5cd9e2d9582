"""The default CheckpointIO: one file written by torch, with a manifest at its end."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from ..errors import CheckpointError
from .base import CheckpointIO, check_arguments
from .checksums import SummedFile, read_while_verifying
from .locations import committed_file, naming_the_newest_whole, store_of
from .manifest import SHARD, FileRecord, Manifest
from .safe_unpickling import load_tensors, refuse_unreadable
from .single_file import CONTENT

_NAME = "torch"


class TorchCheckpointIO(CheckpointIO):
    """A file that ``torch.load(weights_only=True)`` reads, with a manifest at its end, committed by one rename.

    :func:`torch.save` streams it to disk, without a copy in memory. Values that ``torch.load(weights_only=True)`` could
    not read back are refused. Each load compares sizes and checksums, and raises if one differs. The manifest also
    holds the values of ``checkpoint["core"]``, the Strategy's description of the run.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """See the base class; missing parent directories are created.

        A directory at ``path`` that is not a checkpoint is not replaced; a file is.

        Raises:
            CheckpointError: The checkpoint cannot be written, or holds a value that could not be read back.
            ConfigurationError: ``storage_options`` is not ``None``.
            WrongTypeError: ``checkpoint`` is not a dict, or ``path`` is not a path.
        """
        self.check_checkpoint(checkpoint, path, storage_options)
        with committed_file(path) as file:
            content = write_shard(checkpoint, file, path)
            Manifest.describe(checkpoint.get("core"), {CONTENT: content}, _NAME).write(file)

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
            return store_of(path).read(lambda file: _read(file, map_location))


def write_shard(content: Any, file_path: Path, path: str | os.PathLike[str]) -> FileRecord:
    """Like :func:`torch.save`, which hides the cause of an error of the disk; ``path`` is the final path, for messages.

    Raises:
        OSError: The system cannot write the file.
        CheckpointError: torch cannot.
    """
    with file_path.open("wb") as file, ThreadPoolExecutor(1, "core-checksum") as thread:
        summed = SummedFile(file, thread)
        try:
            torch.save(content, cast(BinaryIO, summed))
        except RuntimeError as error:
            if summed.error is not None:
                raise summed.error from None
            raise CheckpointError(f"checkpoint {os.fspath(path)} cannot be written: {error}") from error
    return FileRecord(summed.size, summed.checksum)


def _read(place: Path, map_location: Any) -> dict[str, Any]:
    manifest = Manifest.read(place)
    manifest.check_written_by(_NAME, CONTENT, place)
    return read_while_verifying(
        lambda stop: manifest.verify(place, stop=stop), lambda: _loaded(manifest.file(place, CONTENT), map_location)
    )


def read_file(place: Path, manifest: Manifest, map_location: Any) -> dict[str, Any]:
    """The content of a checkpoint of one file with this manifest, without verification.

    Raises:
        CheckpointError: Another CheckpointIO wrote it, or it cannot be loaded.
    """
    manifest.check_written_by(_NAME, CONTENT, place)
    return _loaded(manifest.file(place, CONTENT), map_location)


def read_shard(directory: Path, map_location: Any) -> dict[str, Any]:
    """The content that :func:`write_shard` wrote into ``directory``, without verification.

    Raises:
        CheckpointError: The manifest does not list the file, or it cannot be loaded.
    """
    return _loaded(Manifest.read(directory).file(directory, SHARD), map_location)


def _loaded(path: Path, map_location: Any) -> dict[str, Any]:
    content: dict[str, Any] = load_tensors(path, map_location)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it holds a {type(content).__name__}, not a dict.")
    return content
