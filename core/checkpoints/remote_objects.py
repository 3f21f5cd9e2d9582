"""The objects of a checkpoint under a URL: those of a directory, by the save that wrote them, or one file."""

from __future__ import annotations

import importlib
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError, ConfigurationError
from . import single_file
from .commit import RESERVED
from .manifest import FILE_NAME, Manifest

FOLDER = re.compile(r"core-(\d{8,18})-[0-9a-f]{16}")
"""The folder of one save: its sequence number, and a part that distinguishes it from saves made at the same time."""
_UPLOAD = f"{RESERVED}tmp-"
"""The prefix of files that are being uploaded."""
_ABANDONED = timedelta(days=1)
"""How old an upload without a manifest must be before it is removed: until then another process may be at it."""


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
    """The part after the last slash."""
    return root.rpartition("/")[2]


def new_folder_name(number: int) -> str:
    """The folder of a new save."""
    return f"core-{number:08}-{secrets.token_hex(8)}"


def sizes_below(files: Any, top: str) -> dict[str, int]:
    """Size by name of everything below ``top``, relative to it; its own name is empty if it is a file itself."""
    # fsspec remembers lists, in which the saves of other processes are missing.
    files.invalidate_cache()
    found: dict[str, Any] = files.find(top, detail=True)
    if not found:
        with suppress(FileNotFoundError):
            files.info(top)  # some kinds of store list nothing where they do not answer, and raise here
    sizes = {name.rstrip("/"): info.get("size") for name, info in found.items() if info.get("type") != "directory"}
    return {
        name.removeprefix(top).lstrip("/"): visible_size(files, name) if size is None else int(size)
        for name, size in sizes.items()
        if name == top or name.startswith(f"{top}/")
    }


def visible_size(files: Any, path: str) -> int:
    """The size of an object as the store has it now; raises what the store raises where there is none."""
    files.invalidate_cache()
    size = files.info(path)["size"]
    return -1 if size is None else int(size)


def joined(url: str, name: str) -> str:
    """``name`` in the folder ``url``."""
    return f"{url}{name}" if url.endswith("://") else f"{url}/{name}"


def remove_abandoned(files: Any, root: str, objects: Mapping[str, int]) -> None:
    """Remove uploads that never ended from among the objects of the folder ``root``."""
    uploads = [[name] for name in objects if name.startswith(_UPLOAD)]
    for name, saves in grouped_by_name(objects).items():
        uploads += [[f"{name}/{save.path(file)}" for file in save.sizes] for save in saves if not save.is_committed]
    for upload in uploads:
        paths = [f"{root}/{name}" for name in upload]
        if all(_is_abandoned(files, path) for path in paths):
            for path in paths:
                files.rm_file(path)


def _is_abandoned(files: Any, path: str) -> bool:
    try:
        changed: datetime = files.modified(path)
    except (NotImplementedError, KeyError, OSError):
        return False
    aware = changed if changed.tzinfo is not None else changed.replace(tzinfo=UTC)
    return datetime.now(UTC) - aware > _ABANDONED


# -- checkpoints of one file -----------------------------------------------------------------------------------------


def file_numbers(files: Any, root: str, objects: Mapping[str, int]) -> dict[str, int]:
    """The sequence numbers of the checkpoints of one file among the objects of the folder ``root``, by name.

    A few bytes of each are read, in one request of many where the store can do that.
    """
    names = [
        name
        for name, size in objects.items()
        if name and "/" not in name and not name.startswith(RESERVED) and size >= single_file.LENGTH
    ]
    paths = [f"{root}/{name}" for name in names]
    starts = [objects[name] - single_file.LENGTH for name in names]
    ends = [objects[name] for name in names]
    found = files.cat_ranges(paths, starts, ends, on_error="return") if paths else []
    trailers = {
        name: single_file.parse_trailer(end)
        for name, end in zip(names, found, strict=True)
        if isinstance(end, bytes)  # else it was removed meanwhile
    }
    return {name: trailer.sequence for name, trailer in trailers.items() if trailer is not None}


def read_file_manifest(files: Any, path: str, url: str) -> Manifest:
    """The manifest of the checkpoint of one file at ``path``; ``url`` is for messages.

    Raises:
        CheckpointError: It is not one, is damaged, or has a newer format.
    """
    with files.open(path, "rb", cache_type="none") as file:
        manifest = Manifest.read_from(file, url)
        trailer, size = single_file.read_trailer(file)
        assert trailer is not None
        manifest.compare_sizes(url, lambda _: single_file.content_size(trailer, size))
    return manifest


def put_whole(files: Any, local: Path, path: str) -> None:
    """Copy a file to ``path``, where it appears in one piece.

    An upload to an object store does so. A server's file system shows a file while it is written: there it gets another
    name first.
    """
    if files.async_impl:
        files.put_file(str(local), path)
        return
    above, slash, name = path.rpartition("/")
    temporary = f"{above}{slash}{_UPLOAD}{secrets.token_hex(8)}-{name}"
    try:
        files.put_file(str(local), temporary)
        with suppress(Exception):  # an empty folder, which a checkpoint of several files has left there
            files.rmdir(path)
        _rename(files, temporary, path)
    except NotImplementedError:  # a store of objects
        files.rm_file(temporary)
        files.put_file(str(local), path)
    except BaseException:
        with suppress(Exception):
            files.rm_file(temporary)
        raise


def _rename(files: Any, old: str, new: str) -> None:
    if type(files).mv is not importlib.import_module("fsspec.spec").AbstractFileSystem.mv:
        files.mv(old, new)
        return
    # fsspec's own takes names with *, ? or [ for patterns.
    files.cp_file(old, new)
    files.rm_file(old)
