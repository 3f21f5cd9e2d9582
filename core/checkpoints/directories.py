"""A file or directory that may be a checkpoint: whether it is one, its number, and which files are its own."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import attrs

from ..errors import CheckpointError
from .disk_remedies import FAILURES
from .manifest import (
    FILE_NAME,
    MOST,
    NOT_A_MANIFEST,
    DamagedManifestError,
    Manifest,
    count,
    is_ours,
    open_file,
    parsed,
    read_small,
)
from .single_file import trailer_at


def identity(place: Path) -> str | None:
    """Tells a checkpoint from any other, by its manifest; ``None`` if there is no manifest that can be read."""
    try:
        if place.is_file():
            trailer = trailer_at(place)
            return None if trailer is None else str(trailer)
        with open_file(place / FILE_NAME) as file:
            return hashlib.sha256(read_small(file)).hexdigest()
    except (OSError, CheckpointError):
        return None


def number(place: Path, parent: Path) -> None:
    """Give the checkpoint at ``place`` the next sequence number of those in ``parent``.

    Clocks can be set back, so that times do not tell which checkpoint was saved last.
    """
    # One that was set aside counts too: the new one replaces it.
    folders = [folder for folder in (parent, parent / ".core-old") if folder.is_dir()]
    known = [max(sequences(folder, os.listdir(folder)).values(), default=0) for folder in folders]
    set_number(place, min(max(known) + 1, MOST))


_Known = tuple[tuple[int, int, int] | None, int]
"""Inode, time and size of a checkpoint's file or manifest, ``None`` where there is none; and the sequence number."""
_known: dict[Path, dict[str, _Known]] = {}
"""A cache of what was found, by folder and name: reading 10,000 checkpoints takes a second."""
MOST_FOLDERS = 8
"""In how many folders the numbers are remembered."""


def sequences(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """What :func:`sequence_of` returns for each of the ``names`` in ``folder``, without torch-hal's own ones there.

    It is read once for each file, as long as the process lives.

    Raises:
        OSError: The disk or its server fails, so that nothing is known.
    """
    before, top = _known.pop(folder, {}), f"{folder}/"
    found = {name: _number_of(top + name, before.get(name)) for name in names if not name.startswith(".core-")}
    _known[folder] = found
    for other in list(_known)[:-MOST_FOLDERS]:
        _known.pop(other, None)  # another thread may have done it
    return {name: each[1] for name, each in found.items()}


def _number_of(place: str, before: _Known | None) -> _Known:
    try:
        status = os.stat(place)
        if stat.S_ISDIR(status.st_mode):
            status = os.stat(f"{place}/{FILE_NAME}", follow_symlinks=False)
    except OSError:
        return None, sequence_of(place)  # what the error means is decided there
    # A commit puts a new file or directory in place, so that a manifest is never written twice.
    file = (status.st_ino, status.st_mtime_ns, status.st_size)
    return before if before is not None and before[0] == file else (file, sequence_of(place))


def set_number(place: Path, sequence: int) -> None:
    """Give the checkpoint at ``place`` this sequence number."""
    attrs.evolve(Manifest.parse(parsed(place), place), sequence=sequence).write(place)


def sequence_of(place: str) -> int:
    """The sequence number of a checkpoint, also of a damaged one; 0 if there is none.

    Raises:
        OSError: The disk or its server fails, so that nothing is known.
    """
    try:
        if stat.S_ISREG(os.stat(place).st_mode):
            trailer = trailer_at(place)
            return 0 if trailer is None else min(trailer.sequence, MOST)
        return count(parsed(Path(place))["sequence"])
    except OSError as error:
        if error.errno in FAILURES:
            raise
        return 0
    except (CheckpointError, *NOT_A_MANIFEST):
        return 0


def is_checkpoint(place: Path) -> bool:
    """Whether ``place`` is a checkpoint in any format. Other directories are never replaced or removed."""
    try:
        return trailer_at(place) is not None if place.is_file() else is_ours(parsed(place))
    except (FileNotFoundError, CheckpointError):
        return False


def is_damaged(directory: Path) -> bool:
    """Whether ``directory`` has a manifest that cannot be parsed: it may be a checkpoint, or another program's."""
    try:
        parsed(directory)
    except DamagedManifestError:
        return True
    except (FileNotFoundError, CheckpointError):
        return False
    return False


def _listed_files(directory: Path) -> set[str] | None:
    """The names in the manifest of a checkpoint in any format; ``None`` if that cannot be told."""
    try:
        return {FILE_NAME, *parsed(directory)["files"]}
    except (FileNotFoundError, CheckpointError, *NOT_A_MANIFEST):
        return None


def unlisted_files(directory: Path) -> list[str]:
    """The files and links in a checkpoint's directory that its manifest does not list, relative to it."""
    if directory.is_symlink() or not directory.is_dir() or (listed := _listed_files(directory)) is None:
        return []
    found = []
    for folder, folders, files in os.walk(directory):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [os.path.relpath(os.path.join(folder, name), directory) for name in (*files, *links)]
    return sorted({name for name in found if Path(name).as_posix() not in listed})
