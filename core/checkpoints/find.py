"""Finding committed checkpoints without loading them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from ..errors import CheckpointError
from .locations import store_of
from .manifest import DamagedError, Manifest, NewerFormatError

__all__ = ["is_committed", "latest", "naming_the_newest_whole", "read_manifest"]


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
