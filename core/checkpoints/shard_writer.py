"""Writing shards with ``torch.distributed.checkpoint``, so that an error has its cause and a remedy."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import CheckpointError
from .disk_remedies import UNCHANGED, remedy
from .manifest import FileRecord
from .shard_reader import METADATA

__all__ = ["write_shards"]


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
    """torch's writer, with an OSError raised as such: ``torch.save`` replaces it by one without the cause."""

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
