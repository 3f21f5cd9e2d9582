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
    """The manifest of the checkpoint at ``path``.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted or in a newer format, or a file is missing or has another
            size.
    """
    directory = locate(path)
    manifest = Manifest.read(directory)
    manifest.check_sizes(directory)
    return manifest


def is_committed(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` holds a complete checkpoint, according to its manifest and its files' sizes."""
    try:
        read_manifest(path)
    except NewerFormatError:
        return True
    except CheckpointError:
        return False
    return True


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint in ``directory`` that was saved last, by the time in its manifest; ``None`` if there is none.

    Anything that is not a committed checkpoint is ignored; a damaged one with a warning in the log.

    Raises:
        CheckpointError: ``directory`` cannot be read, or holds a checkpoint in a newer format, which may be the last.
    """
    folder = Path(directory)
    try:
        names = {*os.listdir(folder), *set_aside_names(folder)}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"directory={os.fspath(directory)!r} cannot be read: {error}.") from error
    found: list[tuple[str, str]] = []
    for name in sorted(names):
        if name.startswith(".") or not locate(folder / name).is_dir():
            continue
        try:
            found.append((read_manifest(folder / name).saved_at, name))
        except NewerFormatError:
            raise
        except CheckpointError as error:
            _log.warning("ignored a damaged checkpoint: %s", error)
    return folder / max(found)[1] if found else None
