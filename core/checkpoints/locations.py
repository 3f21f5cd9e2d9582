"""The store that a path or URL belongs to, the operations at one, and finding committed checkpoints there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, overload

from ..errors import CheckpointError
from ..hints.argument_checks import is_url
from .commit import directories_made, local_path
from .local_store import LocalStore
from .manifest import DamagedError, Manifest, NewerFormatError
from .remote_store import RemoteStore
from .store import Store


def store_of(path: str | os.PathLike[str]) -> Store:
    """The store of the path or URL.

    Raises:
        CheckpointError: There can be no file with this path, or no store with this URL.
        ConfigurationError: fsspec, or the package for this kind of URL, is not installed.
        WrongTypeError: It is not a path.
    """
    return RemoteStore(str(path)) if is_url(path) else LocalStore(path)


def absolute(path: str | os.PathLike[str]) -> str:
    """``path`` with the home directory in place of ``~`` and the working directory before it; a URL as it is.

    Raises:
        CheckpointError: There can be no file with this path.
    """
    if is_url(path):
        return str(path).rstrip("/")
    return str(local_path(os.path.expanduser(path)))


def parent(path: str) -> str:
    """The folder of the path or URL."""
    if not is_url(path):
        return os.path.dirname(path)
    above = path.rstrip("/").rpartition("/")[0]
    return f"{above}/" if above.endswith(":/") else above


def is_in(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether ``folder`` is the folder of ``path``."""
    return parent(absolute(path)) == absolute(folder)


def committed_file(path: str | os.PathLike[str]) -> AbstractContextManager[Path]:
    """For a CheckpointIO that writes one file: a temporary file that is moved to ``path`` when the block ends.

    The block receives a :class:`~pathlib.Path` with the same file name in a temporary directory and writes to it. If
    the block raises, ``path`` is left unchanged. Missing parent directories of ``path`` are created. If ``path`` is a
    URL, the file is copied there in one piece.

    Raises:
        CheckpointError: The file cannot be written, or ``path`` is a directory that is not a checkpoint.
    """
    return store_of(path).committed(directory=False)


def committed_directory(path: str | os.PathLike[str]) -> AbstractContextManager[Path]:
    """Like :func:`committed_file`, for an empty directory, which must hold a manifest when the block ends.

    If ``path`` is a URL, the manifest is copied there last.
    """
    return store_of(path).committed(directory=True)


def directory_of(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """A context for saving to ``path``: missing parent directories are made, and removed if the block raises.

    Where they cannot be made, what the block raises says why.
    """
    return nullcontext() if is_url(path) else directories_made(local_path(path).parent, if_possible=True)


def local_copy(path: str | os.PathLike[str]) -> AbstractContextManager[Path]:
    """The committed checkpoint or file at ``path``, as a path of this machine that is valid in the block.

    It is where the checkpoint is, or for a URL a copy in a temporary directory. What is in it is not verified.

    Raises:
        CheckpointError: ``path`` is a URL with nothing committed, or that cannot be read.
    """
    return store_of(path).local_copy()


def remove_committed(path: str | os.PathLike[str]) -> None:
    """Remove the file or checkpoint at ``path``, if it exists. Does not follow links.

    Files that the checkpoint's manifest does not list stay there.

    Raises:
        CheckpointError: It cannot be removed, or is a directory that is not a checkpoint.
    """
    store_of(path).remove()


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of the checkpoint at ``path``.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted or in a newer format, or a file is missing or has another
            size.
    """
    return store_of(path).manifest()


def is_committed(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` holds a complete checkpoint, according to its manifest and its files' sizes."""
    try:
        read_manifest(path)
    except NewerFormatError:
        return True
    except CheckpointError:
        return False
    return True


@overload
def latest(directory: os.PathLike[str]) -> Path | None: ...
@overload
def latest(directory: str) -> Path | str | None: ...
def latest(directory: str | os.PathLike[str]) -> Any:
    """The checkpoint in ``directory`` that was saved last, by the number in its manifest; ``None`` if there is none.

    Anything that is not a committed checkpoint is ignored; a damaged one with a warning in the log. It is a path, and
    a string if ``directory`` is a URL.

    Raises:
        CheckpointError: ``directory`` cannot be read; or the last checkpoint may be one in a newer format, which this
            torch-hal does not read.
    """
    return store_of(directory).latest()


@contextmanager
def naming_the_newest_whole(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add to an error about the damaged checkpoint ``path`` which of those in the same directory is whole."""
    try:
        yield
    except DamagedError as error:
        whole = store_of(path).newest_whole()
        advice = "" if whole is None else f" The newest whole one in the same directory is {whole}."
        raise CheckpointError(f"{error}{advice}") from error
