"""The manifest: a description of a committed checkpoint and of its files.

It is the last file written into a checkpoint directory.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from core.errors import CheckpointError

__all__ = ["FORMAT_VERSION", "FileRecord", "Manifest", "NewerFormatError"]

FILE_NAME = "manifest.json"
FORMAT = "torch-hal checkpoint"
FORMAT_VERSION = 1
"""The format that this torch-hal writes, and the newest that it reads."""

_CHUNK = 1 << 20


class NewerFormatError(CheckpointError):
    """A committed checkpoint in a format that a newer torch-hal introduced."""


@attrs.frozen
class FileRecord:
    """One file of a checkpoint, as it was written."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal digest."""

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """The record of the file at ``path``, as it is now."""
        return cls(path.stat().st_size, _sha256(path))


@attrs.frozen(kw_only=True)
class Manifest:
    """A description of a committed checkpoint. Unknown values are ``None``."""

    files: Mapping[str, FileRecord]
    """Every file except the manifest, by its name relative to the checkpoint directory."""
    checkpoint_io: str
    """Name of the CheckpointIO that wrote the checkpoint and can read it."""
    saved_at: str = attrs.field(factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    """Time of the save, in UTC and ISO 8601. Its width is fixed, so that sorting as text sorts by time."""
    world_size: int | None = None
    """Number of processes that trained."""
    strategy: str | None = None
    """Name of the strategy."""
    versions: Mapping[str, str | None] = attrs.field(factory=dict)
    """Versions by distribution name: Python, torch, torch-hal and the plugins in use."""

    @classmethod
    def describe(cls, run: Any, files: Mapping[str, FileRecord], checkpoint_io: str) -> Manifest:
        """The manifest of a checkpoint about to be committed.

        Args:
            run: ``checkpoint["core"]``, the Strategy's description of the run: a dict with ``world_size``, ``strategy``
                and ``versions`` (a dict of strings), each optional; ``None`` if there is no such key.
            files: The files that were written.
            checkpoint_io: Name of the CheckpointIO that wrote it.

        Raises:
            CheckpointError: ``run``, or a value in it, has the wrong type.
        """
        given = {} if run is None else run
        if not isinstance(given, dict):
            raise CheckpointError(f"checkpoint['core'] must be a dict or absent, not {type(run).__name__}.")
        versions = given.get("versions") or {}
        for key, value, form in (
            ("world_size", given.get("world_size"), int),
            ("strategy", given.get("strategy"), str),
            ("versions", versions, dict),
        ):
            if value is not None and not isinstance(value, form):
                raise CheckpointError(f"checkpoint['core'][{key!r}]={value!r} must be {form.__name__} or absent.")
        return cls(
            files=files,
            checkpoint_io=checkpoint_io,
            world_size=given.get("world_size"),
            strategy=given.get("strategy"),
            versions=_own_versions() | {str(name): str(text) for name, text in versions.items()},
        )

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """The manifest of the checkpoint in ``directory``.

        Raises:
            NewerFormatError: A newer torch-hal wrote the checkpoint.
            CheckpointError: There is no manifest, or it is damaged.
        """
        path = directory / FILE_NAME
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(
                f"{directory} is not a committed checkpoint: it has no {FILE_NAME}. Pass the path that it was saved to."
            ) from None
        except NotADirectoryError:
            raise CheckpointError(
                f"{directory} is a file, not a directory with a {FILE_NAME}. Load it with the "
                f"CheckpointIO that wrote it (checkpoint_io=...)."
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}.") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}.") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError(f"{path} is not the manifest of a torch-hal checkpoint.")
        return cls._parse(content, path)

    @classmethod
    def _parse(cls, content: dict[str, Any], path: Path) -> Manifest:
        try:
            found = int(content["format_version"])
            if found > FORMAT_VERSION:
                raise NewerFormatError(
                    f"{path.parent} has checkpoint format version {found}, and this torch-hal reads versions up to "
                    f"{FORMAT_VERSION}. Run: pip install --upgrade torch-hal"
                )
            return cls(
                files={
                    _inside(name): FileRecord(int(record["size"]), str(record["sha256"]))
                    for name, record in content["files"].items()
                },
                checkpoint_io=str(content["checkpoint_io"]),
                saved_at=str(content["saved_at"]),
                world_size=content["world_size"],
                strategy=content["strategy"],
                versions=dict(content["versions"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}.") from error

    def write(self, directory: Path) -> None:
        """Write the manifest into ``directory``."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **attrs.asdict(self)}
        (directory / FILE_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def check_sizes(self, directory: Path) -> None:
        """Check each file's size, without reading the file.

        Raises:
            CheckpointError: A file is missing or has another size.
        """
        for name, record in self.files.items():
            path = directory / name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise CheckpointError(f"{path} is missing or cannot be read: {error}.") from error
            if size != record.size:
                raise CheckpointError(
                    f"{path} is damaged: it has {size} bytes, but had {record.size} when it was saved."
                )

    def verify(self, directory: Path, names: Collection[str] | None = None) -> None:
        """Check each file's size and checksum; if ``names`` is given, only the checksums of those files.

        Raises:
            CheckpointError: A file is missing or damaged.
        """
        self.check_sizes(directory)
        for name, record in self.files.items():
            if names is not None and name not in names:
                continue
            path = directory / name
            try:
                found = _sha256(path)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error}.") from error
            if found != record.sha256:
                raise CheckpointError(
                    f"{path} is damaged: its SHA-256 is {found}, but was {record.sha256} when it was saved."
                )


def is_checkpoint(directory: Path) -> bool:
    """Whether ``directory`` is a checkpoint in any format. Other directories are never replaced or removed."""
    try:
        content = json.loads((directory / FILE_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"file name {name!r} is outside of the checkpoint")
    return name


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _own_versions() -> dict[str, str | None]:
    import torch  # not above: reading a manifest needs no torch

    # With its build, such as "+cu130", which the distribution's version need not have.
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    return {**versions, "torch-hal": _version("torch-hal")}


@cache
def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
