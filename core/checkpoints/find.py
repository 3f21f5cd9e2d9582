"""Finding committed checkpoints without loading them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.checkpoints.commit import locate, set_aside_names
from core.checkpoints.manifest import DamagedError, Manifest, NewerFormatError
from core.errors import CheckpointError

__all__ = ["is_committed", "latest", "naming_the_newest_whole", "read_manifest"]

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
    """The checkpoint in ``directory`` that was saved last, by the number in its manifest; ``None`` if there is none.

    Anything that is not a committed checkpoint is ignored; a damaged one with a warning in the log.

    Raises:
        CheckpointError: ``directory`` cannot be read; or the last checkpoint may be one in a newer format, which this
            torch-hal does not read.
    """
    folder = locate(directory)
    try:
        names = {*os.listdir(folder), *set_aside_names(folder)}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"directory={os.fspath(directory)!r} cannot be read: {error}.") from error
    found: list[tuple[int, str, str]] = []
    others: list[NewerFormatError] = []
    for name in sorted(names):
        if name.startswith("."):
            continue
        try:
            if os.path.isdir(locate(folder / name)):
                manifest = read_manifest(folder / name)
                found.append((manifest.sequence, manifest.saved_at, name))
        except NewerFormatError as error:
            others.append(error)
        except CheckpointError as error:
            _log.warning("ignored a damaged checkpoint: %s", error)
    last = max(found, default=None)
    for other in others:
        if last is None or (other.sequence or last[0]) >= last[0]:
            raise other
    return Path(directory) / last[2] if last is not None else None


@contextmanager
def naming_the_newest_whole(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add to an error about the damaged checkpoint ``path`` which of those in the same directory is whole."""
    try:
        yield
    except DamagedError as error:
        whole = _newest_whole(locate(path))
        advice = "" if whole is None else f" The newest whole one in the same directory is {whole}."
        raise CheckpointError(f"{error}{advice}") from error


def _newest_whole(damaged: Path) -> Path | None:
    found: list[tuple[int, Path, Manifest]] = []
    for item in damaged.parent.iterdir():
        with suppress(CheckpointError, OSError):
            if item != damaged and not item.name.startswith("."):
                manifest = Manifest.read(item)
                found.append((manifest.sequence, item, manifest))
    for _, item, manifest in sorted(found, key=lambda row: row[0], reverse=True):
        with suppress(CheckpointError, OSError):
            manifest.verify(item)
            return item
    return None
