"""The manifest: what a committed checkpoint says of itself, and what its files must be.

It is the last file written into a checkpoint's directory.
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
"""The layout this torch-hal writes, and the newest it reads."""

_CHUNK = 1 << 20


class NewerFormatError(CheckpointError):
    """A committed checkpoint in a layout that a later torch-hal introduced."""


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
    """What a committed checkpoint says of itself; what nobody said is ``None``."""

    files: Mapping[str, FileRecord]
    """Every file beside the manifest, by its name relative to the checkpoint's directory."""
    checkpoint_io: str
    """Name of the CheckpointIO that wrote it, and can read it."""
    saved_at: str = attrs.field(factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    """When, in UTC and ISO 8601; of fixed width, so that text order is time order."""
    world_size: int | None = None
    """How many processes trained."""
    strategy: str | None = None
    """Name of the strategy they trained under."""
    versions: Mapping[str, str | None] = attrs.field(factory=dict)
    """By distribution name: Python, torch, torch-hal and the plugins in use."""

    @classmethod
    def describe(cls, run: Any, files: Mapping[str, FileRecord], checkpoint_io: str) -> Manifest:
        """The manifest of a checkpoint about to be committed.

        Args:
            run: ``checkpoint["core"]``, what the Strategy says of the run: a dict with ``world_size``, ``strategy`` and
                ``versions`` (a dict of strings), each optional; ``None`` where there is no such key.
            files: What was written.
            checkpoint_io: Name of the CheckpointIO that wrote it.

        Raises:
            CheckpointError: ``run`` is of another form.
        """
        given = {} if run is None else run
        if not isinstance(given, dict):
            raise CheckpointError(f"checkpoint['core'] is a {type(run).__name__}. Valid: a dict, or no such key.")
        versions = given.get("versions") or {}
        for key, value, form in (
            ("world_size", given.get("world_size"), int),
            ("strategy", given.get("strategy"), str),
            ("versions", versions, dict),
        ):
            if value is not None and not isinstance(value, form):
                raise CheckpointError(f"checkpoint['core'][{key!r}]={value!r}. Valid: {form.__name__}, or no such key.")
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
            NewerFormatError: It is of a later layout.
            CheckpointError: There is none, or it is damaged.
        """
        path = directory / FILE_NAME
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{directory} holds no {FILE_NAME}: not a committed checkpoint.") from None
        except NotADirectoryError:
            raise CheckpointError(
                f"{directory} is a single file. Valid: a directory that holds a {FILE_NAME}; another CheckpointIO "
                f"may read this file."
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}.") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}.") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError(f"{path} is no manifest of a torch-hal checkpoint.")
        return cls._parse(content, path)

    @classmethod
    def _parse(cls, content: dict[str, Any], path: Path) -> Manifest:
        try:
            found = int(content["format_version"])
            if found > FORMAT_VERSION:
                raise NewerFormatError(
                    f"{path.parent} is of format version {found}; this torch-hal reads versions up to {FORMAT_VERSION}."
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
        """Write it into ``directory``."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **attrs.asdict(self)}
        (directory / FILE_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def check_sizes(self, directory: Path) -> None:
        """Compare each file's size, without reading it.

        Raises:
            CheckpointError: A file is missing or of another size.
        """
        for name, record in self.files.items():
            path = directory / name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise CheckpointError(f"{path} of the checkpoint is missing or unreadable: {error}.") from error
            if size != record.size:
                raise CheckpointError(f"{path} is damaged: {size} bytes, the manifest says {record.size}.")

    def verify(self, directory: Path, names: Collection[str] | None = None) -> None:
        """Compare each file's size and checksum; the checksums of ``names`` alone, where they are given.

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
                raise CheckpointError(f"{path} of the checkpoint cannot be read: {error}.") from error
            if found != record.sha256:
                raise CheckpointError(f"{path} is damaged: its SHA-256 is {found}, the manifest says {record.sha256}.")


def is_checkpoint(directory: Path) -> bool:
    """Whether ``directory`` is a checkpoint of ours, of any layout: the only kind of directory we replace or remove."""
    try:
        content = json.loads((directory / FILE_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"file name {name!r} leads outside the checkpoint")
    return name


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _own_versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), **{name: _version(name) for name in ("torch", "torch-hal")}}


@cache
def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
