"""Checkpoints in the file systems of this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..errors import CheckpointError
from .agreement import GatherObject, check_shared, run_on_each_rank, run_on_rank_zero
from .commit import RESERVED, committed_local, local_path, locate, remove_local, set_aside_names, write_errors
from .directories import sequences
from .disk_remedies import reading_remedy
from .manifest import FILE_NAME, SHARD, Manifest, NewerFormatError, NotOursError, UnreadableError, unreadable
from .store import Attempts, Store, read_together_undisturbed, read_undisturbed

_log = logging.getLogger(__name__)

T = TypeVar("T")


class LocalStore(Store):
    """A path in a file system, committed by one rename; see :mod:`core.checkpoints.commit`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        local_path(path)  # refuses what cannot be a path
        self.path = os.fsdecode(path).removeprefix("file://")

    def committed(self, *, directory: bool) -> AbstractContextManager[Path]:
        """See the base class."""
        return committed_local(self.path, directory=directory)

    @contextmanager
    def committed_together(self, gather: GatherObject) -> Iterator[Path]:
        """See the base class. All processes must see the directory."""
        with ExitStack() as stack:
            staged = run_on_rank_zero(lambda: stack.enter_context(self.committed(directory=True)), gather)
            run_on_each_rank(lambda: self._check_shared(staged), gather)
            yield staged
            run_on_rank_zero(stack.close, gather)

    def _check_shared(self, staged: Path) -> None:
        with write_errors(self.path):
            check_shared(staged)

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        """See the base class. Nothing is copied: this is the checkpoint's own path."""
        yield locate(self.path)

    def copied_together(self, gather: GatherObject | None) -> AbstractContextManager[Path]:
        """See the base class. Nothing is copied: this is the checkpoint's own path."""
        return self.local_copy()

    def read(self, function: Callable[[Path], T]) -> T:
        """See the base class."""
        return read_undisturbed(self.path, function)

    def read_together(self, verify: Callable[[Path], None], function: Callable[[Path], T]) -> T:
        """See the base class."""
        return read_together_undisturbed(self.path, verify, function)

    def manifest(self) -> Manifest:
        """See the base class."""
        return read_undisturbed(self.path, _manifest)

    def remove(self) -> None:
        """See the base class."""
        remove_local(self.path)

    def exists(self) -> bool:
        """See the base class; a link whose target is gone counts."""
        return os.path.lexists(local_path(self.path))

    def latest(self) -> Path | None:
        """See the base class; the path is relative if this one is."""
        folder = locate(self.path)
        attempts = Attempts(
            f"directory={self.path!r}: another process removed or renamed a file or directory in it",
            "Give the path of the checkpoint, or look again when that process has ended.",
        )
        while True:
            attempts.begin()
            names = self._present(folder, attempts)
            found: list[tuple[int, str, str]] = []
            others: list[NewerFormatError] = []
            damaged: list[CheckpointError] = []
            for number, alike in self._by_number(folder, names):
                for name in alike:
                    try:
                        manifest = LocalStore(folder / name).manifest()
                        found.append((manifest.sequence, manifest.saved_at, name))
                    except NewerFormatError as error:
                        others.append(error)
                    except UnreadableError:
                        raise  # it may be the last one
                    except CheckpointError as error:
                        if _is_damaged(folder / name, error):
                            damaged.append(error)
                if number and found:
                    break  # the others were saved before
            # Another process may have removed one meanwhile, and have saved a newer one before that.
            if names <= self._present(folder, attempts):
                break
        for each in damaged:
            _log.warning("ignored a damaged checkpoint: %s", each)
        last = max(found, default=None)
        for other in others:
            if last is None or (other.sequence or last[0]) >= last[0]:
                raise other
        return Path(self.path) / last[2] if last is not None else None

    def _by_number(self, folder: Path, names: Collection[str]) -> list[tuple[int, list[str]]]:
        """``names`` by sequence number, from the largest to the smallest; those whose number is not known come first.

        Two saves at the same time may have the same number.
        """
        numbers: dict[int, list[str]] = {}
        try:
            for name, number in sequences(folder, sorted(names)).items():
                numbers.setdefault(number, []).append(name)
        except OSError as error:
            place = str(error.filename or folder).removesuffix(f"/{FILE_NAME}")
            raise unreadable(place, error) from error
        unknown = numbers.pop(0, [])
        return [(0, unknown), *sorted(numbers.items(), reverse=True)]

    def _present(self, folder: Path, attempts: Attempts) -> set[str]:
        """The names in ``folder`` that may be checkpoints."""
        try:
            # A save moves the old checkpoint away and the new one here, and has a staging directory here meanwhile: if
            # there are the same names before and after, no checkpoint has been in neither of the two places.
            while True:
                before = set(os.listdir(folder))
                names = before.union(set_aside_names(folder))
                if before == set(os.listdir(folder)):
                    break
                attempts.begin()
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise CheckpointError(f"directory={self.path!r} cannot be read: {error}.{reading_remedy(error)}") from error
        return {name for name in names if not name.startswith(RESERVED)}

    def newest_whole(self) -> Path | None:
        """See the base class."""
        damaged = locate(self.path)
        found: list[tuple[int, Path, Manifest]] = []
        for item in damaged.parent.iterdir():
            with suppress(CheckpointError, OSError):
                if item != damaged and not item.name.startswith(RESERVED):
                    manifest = Manifest.read(item)
                    found.append((manifest.sequence, item, manifest))
        for _, item, manifest in sorted(found, key=lambda row: row[0], reverse=True):
            with suppress(CheckpointError, OSError):
                manifest.verify(item)
                return item
        return None

    def names(self) -> list[str]:
        """See the base class."""
        try:
            return os.listdir(local_path(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"directory={self.path!r} cannot be read: {error}.") from error

    def new_folder(self, prefix: str) -> str:
        """See the base class."""
        top = Path(self.path)
        try:
            top.mkdir(parents=True, exist_ok=True)
            number = self.next_number(prefix)
            while True:
                folder = top / f"{prefix}{number}"
                try:
                    folder.mkdir()
                except FileExistsError:  # another run was faster
                    number += 1
                else:
                    return str(folder)
        except OSError as error:
            raise CheckpointError(f"no folder for checkpoints can be created in {top}: {error}.") from error


def _manifest(place: Path) -> Manifest:
    manifest = Manifest.read(place)
    manifest.check_sizes(place)
    return manifest


def _is_damaged(place: Path, error: CheckpointError) -> bool:
    """Whether ``error`` of reading the manifest at ``place`` is worth a warning."""
    if isinstance(error, NotOursError):  # a checkpoint's directory that has lost its manifest, or another one
        return (place / SHARD).is_file()
    return place.exists()
