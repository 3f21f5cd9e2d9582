"""A store of objects for fsspec, whose objects are files in the directory $OBJECT_STORE; URLs begin with ``objects://``.

As in S3, there are no folders and no rename, and an object appears as a whole when its upload has ended. With
$OBJECT_STORE_DIES a process kills itself at the end of the upload of an object with this text in its name.
"""

from __future__ import annotations

import io
import os
import secrets
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import fsspec
from fsspec.spec import AbstractFileSystem

__all__ = ["ObjectStore"]


class ObjectStore(AbstractFileSystem):  # type: ignore[misc]
    """See the module."""

    protocol = "objects"
    cachable = False

    @property
    def folder(self) -> Path:
        return Path(os.environ["OBJECT_STORE"])

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("objects://").rstrip("/")

    def _file(self, path: str) -> Path:
        return self.folder / quote(self._strip_protocol(path), safe="")

    def _keys(self) -> dict[str, int]:
        found = {}
        for entry in os.scandir(self.folder):
            try:
                found[unquote(entry.name)] = entry.stat().st_size
            except FileNotFoundError:  # removed meanwhile
                continue
        return {name: size for name, size in found.items() if not name.startswith(".")}

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        top = self._strip_protocol(path)
        if not top:
            raise ValueError("Cannot traverse all of S3")
        found = {
            name: {"name": name, "size": size, "type": "file"}
            for name, size in self._keys().items()
            if name == top or name.startswith(f"{top}/")
        }
        return found if detail else sorted(found)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        raise NotImplementedError

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        size = self._file(path).stat().st_size
        return {"name": self._strip_protocol(path), "size": size, "type": "file"}

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def pipe_file(self, path: str, value: bytes, *_: Any, **__: Any) -> None:
        part = self.folder / f".{secrets.token_hex(8)}"
        part.write_bytes(value)
        if (text := os.environ.get("OBJECT_STORE_DIES")) and text in path:
            os.kill(os.getpid(), signal.SIGKILL)
        os.replace(part, self._file(path))

    def get_file(self, rpath: str, lpath: str, *_: Any, **__: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._file(path).read_bytes()[start:end]

    def rm_file(self, path: str) -> None:
        self._file(path).unlink()

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._file(path).stat().st_mtime, UTC)

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> io.BytesIO:
        return io.BytesIO(self.cat_file(path))

    def mv(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("objects cannot be renamed")

    cp_file = mv
    rename = mv


fsspec.register_implementation("objects", ObjectStore, clobber=True)
