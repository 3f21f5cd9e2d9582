"""The manifest: a description of a committed checkpoint and of its files.

It is the last file written into a checkpoint's directory, or the end of a checkpoint of one file; see
:mod:`core.checkpoints.single_file`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import stat
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any

import attrs

from ..errors import CheckpointError
from . import single_file
from .checksums import checksum_of
from .disk_remedies import FAILURES, reading_remedy
from .single_file import CONTENT

FILE_NAME = "manifest.json"
SHARD = "shard-00000.pt"
"""The file of a checkpoint's directory that holds everything except for what other files of it hold."""
FORMAT = "torch-hal checkpoint"
FORMAT_VERSION = 4
"""The format version that this torch-hal writes. Versions 1 to 3 were used before the first release."""
RUN_STATE = "run state"
"""Stands in the manifest of ``Runtime.save_state`` in place of a CheckpointIO's name."""

# A file that is damaged, or another program's, is not read into memory whatever its size.
LARGEST = 64 << 20
"""Bytes of a manifest."""
MOST = 2**53 - 1
"""The largest number in a manifest: every program that reads JSON has it exactly."""
_CRC32 = re.compile(r"[0-9a-f]{8}", re.ASCII)
NOT_A_MANIFEST = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""The exceptions that parsing arbitrary content as a manifest can raise."""


class NewerFormatError(CheckpointError):
    """A committed checkpoint in a format that a newer torch-hal introduced."""

    sequence: int | None = None
    """Its sequence number, if the format still has one."""


class DamagedError(CheckpointError):
    """A file of a committed checkpoint is not what was saved."""


class NotOursError(CheckpointError):
    """What is there has no manifest of ours: it may be a checkpoint that another library has written."""


class UnreadableError(CheckpointError):
    """The disk, its server or a limit of this process fails: the checkpoint may be whole."""


def unreadable(place: str | os.PathLike[str], error: OSError) -> CheckpointError:
    """The error for a file that could not be read: an :class:`UnreadableError` if the disk or its server fails."""
    kind = UnreadableError if error.errno in FAILURES else CheckpointError
    return kind(f"{place} cannot be read: {error}.{reading_remedy(error)}")


class DamagedManifestError(DamagedError):
    """The manifest's file is not JSON."""


@attrs.frozen
class FileRecord:
    """One file of a checkpoint, as it was written."""

    size: int
    """Bytes."""
    crc32: str
    """The CRC-32 of them, as 8 hexadecimal digits."""

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """The record of the file at ``path``, as it is now."""
        with open_file(path) as file:
            return cls(size := path.stat().st_size, checksum_of(file, size))


@attrs.frozen(kw_only=True)
class Manifest:
    """A description of a committed checkpoint. Unknown values are ``None``."""

    files: Mapping[str, FileRecord]
    """Every file except the manifest, by its name relative to the checkpoint's directory.

    Of a checkpoint of one file: ``"content"``, which is everything before the manifest.
    """
    checkpoint_io: str
    """Name of the CheckpointIO that wrote the checkpoint and can read it."""
    sequence: int = 0
    """Counts the saves in the directory that holds the checkpoint; set when the checkpoint is committed."""
    saved_at: str = attrs.field(factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    """Time of the save, in UTC and ISO 8601. For people: a clock can be set back."""
    world_size: int | None = None
    """Number of processes that trained."""
    strategy: str | None = None
    """Name of the strategy."""
    versions: Mapping[str, str | None] = attrs.field(factory=dict)
    """Versions by distribution name: Python, torch, torch-hal and the plugins in use."""
    epoch: int | None = None
    """The number of complete epochs, of a Trainer."""
    step: int | None = None
    """The number of optimizer steps, of a Trainer."""
    metrics: Mapping[str, float] = attrs.field(factory=dict)
    """The finite values that a Trainer has logged in epochs and passes that ended after this step."""

    @classmethod
    def describe(cls, run: Any, files: Mapping[str, FileRecord], checkpoint_io: str) -> Manifest:
        """The manifest of a checkpoint about to be committed.

        Args:
            run: ``checkpoint["core"]``, the Strategy's description of the run: a dict with ``world_size``,
                ``strategy``, ``versions`` (a dict of strings), ``epoch``, ``step`` and ``metrics`` (a dict of numbers),
                each optional; ``None`` if there is no such key.
            files: The files that were written.
            checkpoint_io: Name of the CheckpointIO that wrote it.

        Raises:
            CheckpointError: ``run``, or a value in it, has the wrong type.
        """
        given = {} if run is None else run
        if not isinstance(given, dict):
            raise CheckpointError(f"checkpoint['core'] must be a dict or absent, not {type(run).__name__}.")
        forms = {"world_size": int, "strategy": str, "versions": dict, "epoch": int, "step": int, "metrics": dict}
        for key, form in forms.items():
            value = given.get(key)
            if value is not None and not isinstance(value, form):
                raise CheckpointError(f"checkpoint['core'][{key!r}]={value!r} must be {form.__name__} or absent.")
        return cls(
            files=files,
            checkpoint_io=checkpoint_io,
            world_size=given.get("world_size"),
            strategy=given.get("strategy"),
            versions=_own_versions() | {str(name): str(text) for name, text in (given.get("versions") or {}).items()},
            epoch=given.get("epoch"),
            step=given.get("step"),
            metrics=_finite(given.get("metrics") or {}),
        )

    @classmethod
    def read(cls, place: Path) -> Manifest:
        """The manifest of the checkpoint that is the file or directory ``place``.

        Raises:
            NewerFormatError: A newer torch-hal wrote the checkpoint.
            CheckpointError: There is no manifest, or it is damaged.
        """
        return cls.parse(_content(place), place)

    @classmethod
    def read_from(cls, file: IO[bytes], place: object) -> Manifest:
        """The manifest at the end of an open file; ``place`` is for messages. Raises what :meth:`read` does."""
        return cls.parse(_json(_text_in_file(file, place), place), place)

    @classmethod
    def parse(cls, content: Any, place: object) -> Manifest:
        """The manifest with this content, of the checkpoint at ``place``. Raises what :meth:`read` does."""
        if not is_ours(content):
            raise NotOursError(f"{_named(place)} is not the manifest of a torch-hal checkpoint.")
        try:
            found = count(content["format_version"])
            if found > FORMAT_VERSION:
                raise _newer(found, content, place)
            if found < FORMAT_VERSION:
                raise ValueError(f"there is no format version {found}")
            rest = {key: value for key, value in content.items() if key != "sha256"}
            if content["format"] != FORMAT or content["sha256"] != _digest(rest):
                raise ValueError("its content does not match its own checksum")
            return cls(
                files={
                    _inside(name): FileRecord(count(record["size"]), _hexadecimal(record["crc32"]))
                    for name, record in content["files"].items()
                },
                checkpoint_io=str(content["checkpoint_io"]),
                sequence=count(content["sequence"]),
                saved_at=_moment(content["saved_at"]),
                world_size=content["world_size"],
                strategy=content["strategy"],
                versions=dict(content["versions"]),
                epoch=_count_or_none(content.get("epoch")),
                step=_count_or_none(content.get("step")),
                metrics=_finite(content.get("metrics", {})),
            )
        except NOT_A_MANIFEST as error:
            raise DamagedError(f"{_named(place)} is damaged: {type(error).__name__}: {error}.") from error

    def write(self, place: Path) -> None:
        """Write the manifest into the directory ``place``, or behind the content of the file."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **attrs.asdict(self)}
        text = (json.dumps({**content, "sha256": _digest(content)}, indent=2) + "\n").encode()
        if place.is_dir():
            (place / FILE_NAME).write_bytes(text)
        else:
            single_file.write_tail(place, text, self.files[CONTENT].size, self.sequence)

    def check_written_by(self, checkpoint_io: str, file: str, place: Path) -> None:
        """Check the name of the CheckpointIO, and that the manifest lists the file that it reads first.

        Raises:
            CheckpointError: Another CheckpointIO wrote the checkpoint.
        """
        if self.checkpoint_io == RUN_STATE:
            raise CheckpointError(
                f"{place} holds the state of a run, which Runtime.save_state has written. Load it by "
                "runtime.load_state(path)."
            )
        if self.checkpoint_io != checkpoint_io:
            raise CheckpointError(
                f"{place} was written with checkpoint_io={self.checkpoint_io!r} and cannot be read with "
                f"checkpoint_io={checkpoint_io!r}. Set checkpoint_io={self.checkpoint_io!r}."
            )
        self.file(place, file)

    def file(self, place: Path, name: str) -> Path:
        """The path of a file of the checkpoint at ``place``. Everything that is read of a checkpoint is read there.

        Raises:
            CheckpointError: The manifest does not list it, so no one has checked it; or it is a link or not a file.
        """
        if name not in self.files:
            raise CheckpointError(f"{place} is damaged: its manifest does not list {name}.")
        _size_at(place, name, lambda name: _size(place, name))
        return place.resolve() if name == CONTENT else place / name

    def check_sizes(self, place: Path) -> None:
        """Check each file's size, without reading the file.

        Raises:
            CheckpointError: A file is missing, has another size, or is a link or not a file.
        """
        self.compare_sizes(place, lambda name: _size(place, name))

    def compare_sizes(self, place: object, size_of: Callable[[str], int]) -> None:
        """Like :meth:`check_sizes`; ``size_of`` returns a file's size or raises OSError. ``place`` is for messages."""
        for name, record in self.files.items():
            size = _size_at(place, name, size_of)
            if size != record.size:
                raise DamagedError(
                    f"{_of(place, name)} is damaged: it has {size} bytes, but had {record.size} when it was saved."
                )

    def verify(self, place: Path, names: Collection[str] | None = None, stop: threading.Event | None = None) -> None:
        """Check each file's size and checksum.

        Args:
            place: The checkpoint.
            names: If given, only the checksums of these files are checked.
            stop: Set by another thread when the result is not needed any more.

        Raises:
            CheckpointError: A file is missing or damaged.
        """
        self.check_sizes(place)
        for name, record in self.files.items():
            if names is not None and name not in names:
                continue
            path = self.file(place, name)
            try:
                with open_file(path) as file:
                    found = checksum_of(file, record.size, stop)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error}.{reading_remedy(error)}") from error
            if found != record.crc32:
                raise DamagedError(
                    f"{path} is damaged: its CRC-32 is {found}, but was {record.crc32} when it was saved."
                )


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading. Does not follow a link, and does not wait for what is not a file, such as a pipe.

    Raises:
        OSError: It cannot be opened.
        CheckpointError: It is a link, or not a regular file.
    """
    _refuse_irregular(path, os.lstat(path).st_mode)
    return path.open("rb", buffering=0)


def read_small(file: IO[bytes], most: int = LARGEST) -> bytes:
    """What is in a file, at most so many bytes; ``file.read(most)`` would allocate as many, also for a small file."""
    return file.read(min(most, os.fstat(file.fileno()).st_size))


def _of(place: object, name: str) -> str:
    return f"{place}" if name == CONTENT else f"{place}/{name}"


def _size_at(place: object, name: str, size_of: Callable[[str], int]) -> int:
    try:
        return size_of(name)
    except OSError as error:
        if error.errno in FAILURES:
            raise unreadable(_of(place, name), error) from error
        raise DamagedError(f"{_of(place, name)} is missing or cannot be read: {error}.") from error


def _size(place: Path, name: str) -> int:
    """The size of the file ``name``. No part of its path within the directory ``place`` may be a link."""
    if name == CONTENT:
        with open_file(place.resolve()) as file:
            trailer, size = single_file.read_trailer(file)
        return size if trailer is None else single_file.content_size(trailer, size)
    path = place
    *folders, last = PurePosixPath(name).parts
    for folder in folders:
        path = path / folder
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise CheckpointError(f"{path} is a link. A checkpoint has no links; this one was changed.")
    status = os.lstat(path / last)
    _refuse_irregular(path / last, status.st_mode)
    return status.st_size


def _refuse_irregular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"Is a directory: {path}")
    kind = "a link" if stat.S_ISLNK(mode) else "not a regular file"
    raise CheckpointError(f"{path} is {kind}. A checkpoint has only regular files; this one was changed.")


def _named(place: object) -> object:
    """Where the manifest of the checkpoint at ``place`` is, for messages."""
    return place / FILE_NAME if isinstance(place, Path) and place.is_dir() else place


def _content(place: Path) -> Any:
    """The parsed content of the manifest of the checkpoint at ``place``.

    Raises:
        CheckpointError: There is none, or it cannot be parsed.
    """
    try:
        return parsed(place)
    except FileNotFoundError:
        if not place.exists():
            raise CheckpointError(
                f"{place} is not a committed checkpoint: it does not exist. Pass the path that it was saved to."
            ) from None
        raise NotOursError(
            f"{place} is not a committed checkpoint: it has no {FILE_NAME}. Pass the path that it was saved to."
        ) from None
    except OSError as error:
        raise unreadable(place, error) from error


def parsed(place: Path) -> Any:
    """Like :func:`_content`; raises OSError as it is."""
    return _json(_text(place), place)


def _json(text: bytes, place: object) -> Any:
    try:
        return json.loads(text)
    except NOT_A_MANIFEST as error:
        raise DamagedManifestError(f"{_named(place)} is damaged: {error}.") from error


def _text(place: Path) -> bytes:
    if stat.S_ISREG(os.stat(place).st_mode):
        with place.open("rb") as file:
            return _text_in_file(file, place)
    with open_file(place / FILE_NAME) as file:
        text = read_small(file, LARGEST + 1)
    if len(text) > LARGEST:
        raise CheckpointError(f"{place / FILE_NAME} is damaged: it has more than {LARGEST} bytes.")
    return text


def _text_in_file(file: IO[bytes], place: object) -> bytes:
    trailer, size = single_file.read_trailer(file)
    if trailer is None:
        if single_file.has_lost_its_trailer(file):
            raise DamagedError(f"{place} is damaged: it does not end as a checkpoint does.")
        raise NotOursError(
            f"{place} is a file without a manifest. Load it with the CheckpointIO that wrote it (checkpoint_io=...)."
        )
    try:
        return single_file.read_tail(file, trailer, size, LARGEST)
    except ValueError as error:
        raise DamagedManifestError(f"{place} is damaged: {error}.") from error


def is_ours(content: Any) -> bool:
    """Whether it is the content of the manifest of a checkpoint of ours, be it damaged or of a newer format."""
    # One flipped bit must not turn a checkpoint into a directory of another program.
    return isinstance(content, dict) and (
        content.get("format") == FORMAT or {"files", "checkpoint_io", "saved_at"} <= content.keys()
    )


def _newer(found: int, content: Mapping[str, Any], place: object) -> NewerFormatError:
    error = NewerFormatError(
        f"{place} has checkpoint format version {found}, and this torch-hal reads version {FORMAT_VERSION}. "
        "Run: pip install --upgrade torch-hal"
    )
    sequence = content.get("sequence")
    error.sequence = sequence if isinstance(sequence, int) else None
    return error


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def count(value: Any) -> int:
    """``value``, a number in a manifest.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"{str(value)[:50]!r} is not an integer from 0 to 2**53 - 1")
    return value


def _count_or_none(value: Any) -> int | None:
    return None if value is None else count(value)


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in ``values`` that JSON has."""
    return {str(name): float(value) for name, value in values.items() if math.isfinite(value)}


def _moment(value: Any) -> str:
    return datetime.fromisoformat(value).astimezone(UTC).isoformat(timespec="microseconds")


def _hexadecimal(value: Any) -> str:
    if not isinstance(value, str) or not _CRC32.fullmatch(value):
        raise ValueError(f"{str(value)[:100]!r} is not a CRC-32")
    return value


def _inside(name: str) -> str:
    paths = PurePosixPath(name), PurePath(name)  # the second is this system's
    if not paths[0].parts or any(path.anchor or ".." in path.parts for path in paths) or "\0" in name:
        raise ValueError(f"file name {name[:100]!r} is outside of the checkpoint")
    name.encode()  # no lone surrogates
    return name


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
