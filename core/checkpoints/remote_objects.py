"""The objects of a checkpoint under a URL, by the save that wrote them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import CheckpointError, ConfigurationError
from .manifest import FILE_NAME

__all__ = ["FOLDER", "Save", "file_system", "grouped", "grouped_by_name", "joined", "last_part", "size_in"]

FOLDER = re.compile(r"core-(\d{8,18})-[0-9a-f]{16}")
"""The folder of one save: its sequence number, and what tells it from others that are made at the same time."""


class Save(NamedTuple):
    """The files of one save, or of a checkpoint that another tool has copied to the URL."""

    number: int
    """Its sequence number; -1 if the folder does not tell."""
    folder: str
    """Relative to the checkpoint; empty for a copy by another tool."""
    sizes: Mapping[str, int]
    """Bytes of each file."""

    @property
    def is_committed(self) -> bool:
        """Whether it has a manifest."""
        return FILE_NAME in self.sizes

    def path(self, name: str) -> str:
        """Its file ``name``, relative to the checkpoint."""
        return f"{self.folder}/{name}" if self.folder else name


def file_system(url: str) -> tuple[Any, str]:
    """The file system that fsspec has for ``url``, and the path in it.

    Raises:
        CheckpointError: fsspec does not know this kind of URL, or cannot open it.
        ConfigurationError: fsspec, or the package for this kind of URL, is not installed.
    """
    try:
        fsspec = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise ConfigurationError(
            f"path={url!r} is a URL, and fsspec cannot be imported ({error}). Run: pip install fsspec"
        ) from error
    try:
        files, root = fsspec.url_to_fs(url)
    except ImportError as error:
        raise ConfigurationError(
            f"path={url!r}: {error}. fsspec reads this kind of URL by another package: install it with pip, such as "
            "s3fs for s3:// and gcsfs for gs://."
        ) from error
    except ValueError as error:
        raise CheckpointError(f"path={url!r}: {error}. Use a path, or a URL that fsspec knows.") from error
    except Exception as error:  # every kind of store has its own
        raise CheckpointError(f"path={url!r} cannot be opened: {type(error).__name__}: {error}") from error
    return files, str(root)


def grouped(objects: Mapping[str, int]) -> list[Save]:
    """The saves among the objects of a checkpoint, from the first to the last."""
    sizes: dict[str, dict[str, int]] = {}
    for name, size in objects.items():
        folder, _, file = name.partition("/")
        if file and FOLDER.fullmatch(folder):
            sizes.setdefault(folder, {})[file] = size
    own = sorted(Save(int(folder.split("-")[1]), folder, found) for folder, found in sizes.items())
    copied = [] if FILE_NAME not in objects else [Save(-1, "", objects)]
    return [*copied, *own]


def grouped_by_name(objects: Mapping[str, int]) -> dict[str, list[Save]]:
    """The saves of each checkpoint among the objects of a folder."""
    found: dict[str, dict[str, int]] = {}
    for path, size in objects.items():
        name, _, rest = path.partition("/")
        if rest:
            found.setdefault(name, {})[rest] = size
    return {name: grouped(inner) for name, inner in found.items()}


def size_in(save: Save, name: str) -> int:
    """The size of a file; raises FileNotFoundError if it is not there."""
    if name not in save.sizes:
        raise FileNotFoundError("No such file")
    return save.sizes[name]


def last_part(root: str) -> str:
    """What is after the last slash."""
    return root.rpartition("/")[2]


def joined(url: str, name: str) -> str:
    """``name`` in the folder ``url``."""
    return f"{url}{name}" if url.endswith("://") else f"{url}/{name}"
