"""A cache of facts about plugins, learnt in another process and kept for later runs of the same user.

One file of JSON for each set of installed distributions, in the user's cache directory. It is a convenience: a file
that is missing, damaged or not this user's own is not read, and one that cannot be written is not kept. A module that
it names is imported later; so only a file that no one else can have written is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

logger = logging.getLogger(__name__)

_FORMAT = 1
_MOST_FILES = 4096
_SUFFIXES = (".py", *importlib.machinery.EXTENSION_SUFFIXES)
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_KEPT = 30 * 86400.0
"""Seconds after which a file that no run has written again is removed."""


def directory(environ: Mapping[str, str]) -> str | None:
    """The folder of the cache; ``None`` if the user has no cache directory.

    Args:
        environ: The environment variables: ``XDG_CACHE_HOME`` and ``HOME``, or ``LOCALAPPDATA``.
    """
    home = environ.get("HOME", "")
    base = environ.get("XDG_CACHE_HOME") or environ.get("LOCALAPPDATA") or (home and os.path.join(home, ".cache"))
    return os.path.join(base, "torch-hal", "plugins") if base and os.path.isabs(base) else None


class Cache:
    """The answers that are kept for the distributions installed now.

    Args:
        environ: The environment variables; without a cache directory nothing is kept.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        folder = directory(environ)
        self._file = None if folder is None else os.path.join(folder, f"{_installed()}.json")
        self._entries = {} if self._file is None else _read(self._file)

    def get(self, key: str, module: str, limit: float | None = None) -> Any:
        """The answer kept under ``key``; ``None`` if there is none, or if the files of the package have changed since.

        Args:
            key: What the answer is about.
            module: The module whose package is compared.
            limit: Seconds for which such an answer is valid.
        """
        entry = self._entries.get(key)
        try:
            if entry is None or entry["files"] != fingerprint(module):
                return None
            if limit is not None and not 0.0 <= time.time() - entry["time"] <= limit:
                return None
            return entry["answer"]
        except (KeyError, TypeError):
            return None

    def put(self, answers: Mapping[str, tuple[str, Any]]) -> None:
        """Keep answers: by key, the module whose package they are about, and plain data."""
        if self._file is None or not answers:
            return
        now = time.time()
        entries = {
            key: {"files": fingerprint(module), "time": now, "answer": answer}
            for key, (module, answer) in answers.items()
        }
        self._entries = {**_read(self._file), **entries}  # another process may have added some
        try:
            _write(self._file, {"format": _FORMAT, "entries": self._entries})
        except OSError as error:
            logger.debug("what was learnt about plugins is not kept: %s", error)


def fingerprint(module: str) -> str:
    """Changes when a source file of the module's package does: names, sizes and times, without importing it."""
    digest = hashlib.sha256()
    for name, size, changed in sorted(_files(module.partition(".")[0])):
        digest.update(f"{name}\0{size}\0{changed}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(package: str) -> Iterator[tuple[str, int, int]]:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return
    roots = list(found.submodule_search_locations or ())
    files = [] if roots or not found.origin else [found.origin]
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            files += [os.path.join(folder, name) for name in names if name.endswith(_SUFFIXES)]
            if len(files) > _MOST_FILES:
                break
    for file in files:
        with contextlib.suppress(OSError):
            facts = os.stat(file)
            yield file, facts.st_size, facts.st_mtime_ns


def _installed() -> str:
    """Changes when a distribution is installed, updated or removed, or this Python or this core is another."""
    digest = hashlib.sha256(f"{_FORMAT}\n{sys.version}\n{sys.executable}\n".encode())
    for root in sys.path:
        with contextlib.suppress(OSError, ValueError, TypeError):
            found = sorted(name for name in os.listdir(root or ".") if name.endswith((".dist-info", ".egg-info")))
            if found:
                digest.update("\n".join([os.path.abspath(root), *found, ""]).encode(errors="surrogateescape"))
    for name, size, changed in sorted(_own_files()):
        digest.update(f"{name}\0{size}\0{changed}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _own_files() -> Iterator[tuple[str, int, int]]:
    """Files of core that the answers depend on."""
    here = os.path.dirname(os.path.abspath(__file__))
    files = [os.path.join(here, name) for name in os.listdir(here)]
    for file in [*files, os.path.join(os.path.dirname(here), "specs.py")]:
        if file.endswith(".py"):
            facts = os.stat(file)
            yield file, facts.st_size, facts.st_mtime_ns


def _read(file: str) -> dict[str, Any]:
    try:
        with open(os.open(file, _OPEN), encoding="utf-8") as opened:
            if not (_is_own(os.fstat(opened.fileno())) and _is_own(os.stat(os.path.dirname(file)))):
                logger.warning("%s is not read: another user can write it. Remove it.", file)
                return {}
            data = json.load(opened)
        return dict(data["entries"]) if data["format"] == _FORMAT else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.debug("%s is not read: %s", file, error)
        return {}


def _is_own(facts: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True  # the folder of a user's own data is not shared there
    return facts.st_uid == os.getuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _write(file: str, data: Mapping[str, Any]) -> None:
    folder = os.path.dirname(file)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if not _is_own(os.stat(folder)):
        raise PermissionError(f"{folder} is not only this user's")
    descriptor, temporary = tempfile.mkstemp(dir=folder)
    try:
        with open(descriptor, "w", encoding="utf-8") as opened:
            json.dump(data, opened)
        os.replace(temporary, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _remove_old(folder)


def _remove_old(folder: str) -> None:
    oldest = time.time() - _KEPT
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if os.stat(path, follow_symlinks=False).st_mtime < oldest:
                os.unlink(path)
