"""Finding committed checkpoints without loading them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from core.checkpoints.commit import locate, set_aside_names
from core.checkpoints.manifest import Manifest, NewerFormatError
from core.errors import CheckpointError

__all__ = ["is_committed", "latest", "read_manifest"]

_log = logging.getLogger(__name__)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """What the checkpoint at ``path`` says of itself.

    Raises:
        CheckpointError: It is absent, uncommitted, of a later layout, or lacks a file of the size it had.
    """
    directory = locate(path)
    manifest = Manifest.read(directory)
    manifest.check_sizes(directory)
    return manifest


def is_committed(path: str | os.PathLike[str]) -> bool:
    """Whether a whole checkpoint is at ``path``, going by its manifest and the sizes of its files."""
    try:
        read_manifest(path)
    except NewerFormatError:
        return True
    except CheckpointError:
        return False
    return True


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint in ``directory`` that was saved last, by the time in its manifest; ``None`` where there is none.

    Whatever is not a committed checkpoint is passed over; a damaged one with a warning in the log.

    Raises:
        CheckpointError: ``directory`` cannot be read, or holds a checkpoint of a later layout, which may be the last.
    """
    folder = Path(directory)
    try:
        names = {*os.listdir(folder), *set_aside_names(folder)}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"checkpoints in {folder} cannot be found: {error}.") from error
    found: list[tuple[str, str]] = []
    for name in sorted(names):
        if name.startswith(".") or not locate(folder / name).is_dir():
            continue
        try:
            found.append((read_manifest(folder / name).saved_at, name))
        except NewerFormatError:
            raise
        except CheckpointError as error:
            _log.warning("passed over: %s", error)
    return folder / max(found)[1] if found else None
