"""A directory that may be a checkpoint: whether it is one, its number, and which of the files in it are its own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import attrs

from ..errors import CheckpointError
from .disk_remedies import FAILURES
from .manifest import (
    FILE_NAME,
    LARGEST,
    MOST,
    NOT_A_MANIFEST,
    DamagedManifestError,
    Manifest,
    count,
    is_ours,
    open_file,
    parsed,
)

__all__ = [
    "identity",
    "is_checkpoint",
    "is_damaged",
    "number",
    "set_number",
    "unlisted_files",
]


def identity(directory: Path) -> str | None:
    """Tells a checkpoint from any other, by its manifest; ``None`` if there is no manifest that can be read."""
    try:
        with open_file(directory / FILE_NAME) as file:
            return hashlib.sha256(file.read(LARGEST)).hexdigest()
    except (OSError, CheckpointError):
        return None


def number(directory: Path, parent: Path) -> None:
    """Give the checkpoint in ``directory`` the next sequence number of those in ``parent``.

    Clocks can be set back, so that times do not tell which checkpoint was saved last.
    """
    # One that was set aside counts too: the new one replaces it.
    folders = [parent, parent / ".core-old"]
    names = [os.path.join(folder, name) for folder in folders if folder.is_dir() for name in os.listdir(folder)]
    names = [name for name in names if not os.path.basename(name).startswith(".core-")]
    before = _numbers.pop(parent, {})
    _numbers[parent] = known = {name: _numbered(name, before.get(name)) for name in names}
    for folder in list(_numbers)[:-MOST_FOLDERS]:
        del _numbers[folder]
    set_number(directory, min(max((each[1] for each in known.values()), default=0) + 1, MOST))


_Numbered = tuple[tuple[int, int, int] | None, int]
"""A manifest's inode, time and size, or ``None`` where there is none; and the sequence number in it."""
_numbers: dict[Path, dict[str, _Numbered]] = {}
"""What the newest saves have found, by folder: with 1,000 checkpoints, reading them takes longer than a save."""
MOST_FOLDERS = 8
"""In how many folders the numbers are remembered."""


def _numbered(directory: str, before: _Numbered | None) -> _Numbered:
    try:
        status = os.stat(os.path.join(directory, FILE_NAME), follow_symlinks=False)
    except OSError:
        return None, _sequence(Path(directory))  # what the error means is decided there
    # A commit puts a new directory in place, so that a manifest is never written twice.
    file = (status.st_ino, status.st_mtime_ns, status.st_size)
    return before if before is not None and before[0] == file else (file, _sequence(Path(directory)))


def set_number(directory: Path, sequence: int) -> None:
    """Give the checkpoint in ``directory`` this sequence number."""
    manifest = Manifest._parse(parsed(directory / FILE_NAME), directory / FILE_NAME)
    attrs.evolve(manifest, sequence=sequence).write(directory)


def _sequence(directory: Path) -> int:
    """The sequence number of a checkpoint, also of a damaged one; 0 if there is none.

    Raises:
        OSError: The disk or its server fails, so that nothing is known.
    """
    try:
        return count(parsed(directory / FILE_NAME)["sequence"])
    except OSError as error:
        if error.errno in FAILURES:
            raise
        return 0
    except (CheckpointError, *NOT_A_MANIFEST):
        return 0


def is_checkpoint(directory: Path) -> bool:
    """Whether ``directory`` is a checkpoint in any format. Other directories are never replaced or removed."""
    try:
        return is_ours(parsed(directory / FILE_NAME))
    except (FileNotFoundError, CheckpointError):
        return False


def is_damaged(directory: Path) -> bool:
    """Whether ``directory`` has a manifest that cannot be parsed, so that no one can tell whose it is."""
    try:
        parsed(directory / FILE_NAME)
    except DamagedManifestError:
        return True
    except (FileNotFoundError, CheckpointError):
        return False
    return False


def _listed_files(directory: Path) -> set[str] | None:
    """The names in the manifest of a checkpoint in any format; ``None`` if that cannot be told."""
    try:
        return {FILE_NAME, *parsed(directory / FILE_NAME)["files"]}
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
