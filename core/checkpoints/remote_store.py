"""Checkpoints under a URL, by fsspec.

Object stores cannot rename, and an object becomes visible only when its upload is complete. A checkpoint of one file is
one object. A save of several files uploads to a new folder below the checkpoint's name, with the same layout as on
disk::

    NAME/core-00000007-<random>/shard-00000.pt     uploaded first
    NAME/core-00000007-<random>/manifest.json      uploaded last: from here on, it is the checkpoint
    NAME/core-00000004-<random>/...                the previous one, removed afterwards

The number counts the saves in the folder that holds the checkpoint. The newest folder that has a manifest is the
checkpoint; folders without one are those of saves that were killed, and are ignored. The files of a save are first
written to the temporary directory of this machine.
"""

from __future__ import annotations

import errno
import logging
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..errors import CheckpointError, CoreError
from .agreement import GatherObject, run_on_each_rank, run_on_rank_zero
from .commit import RESERVED, temporary_directory
from .directories import is_checkpoint, set_number
from .disk_remedies import remedy
from .manifest import FILE_NAME, DamagedError, Manifest, NewerFormatError, UnreadableError
from .remote_objects import (
    FOLDER,
    Save,
    file_numbers,
    file_system,
    grouped,
    grouped_by_name,
    joined,
    last_part,
    new_folder_name,
    put_whole,
    read_file_manifest,
    remove_abandoned,
    size_in,
    sizes_below,
    visible_size,
)
from .store import Attempts, Store

_log = logging.getLogger(__name__)

T = TypeVar("T")

_VISIBLE_SECONDS = 30.0
"""How long an uploaded file may take to appear to this process."""


class RemoteStore(Store):
    """A URL.

    Raises:
        CheckpointError: It cannot be the URL of a file.
        ConfigurationError: fsspec, or the package for this kind of URL, is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if not url.endswith("://") else url
        if "\0" in url or url.encode(errors="replace") != url.encode(errors="surrogatepass"):
            raise CheckpointError(f"path={url!r} has a NUL character or a lone surrogate. Use another URL.")
        self._files, root = file_system(url)
        self._root = root.rstrip("/")

    # -- what is there -----------------------------------------------------------------------------------------------

    def _objects(self, root: str | None = None) -> dict[str, int]:
        """Size by name of everything below, relative to it; its own name is empty if it is a file itself."""
        return sizes_below(self._files, self._root if root is None else root)

    def _saves(self) -> list[Save]:
        """The saves of this checkpoint. The last committed one counts."""
        return grouped(self._objects())

    def _manifest(self, save: Save, into: Path) -> Manifest:
        """Its manifest, copied to a directory; its files have the right sizes."""
        self._files.get_file(f"{self._root}/{save.path(FILE_NAME)}", str(into / FILE_NAME))
        manifest = Manifest.read(into)
        manifest.compare_sizes(f"{self.url}/{save.folder}".rstrip("/"), lambda name: size_in(save, name))
        return manifest

    def _current(self, into: Path) -> tuple[Save, Manifest]:
        """The save that counts, and its manifest, copied to a directory."""
        for _ in range(3):
            committed = [save for save in self._saves() if save.is_committed]
            if committed:
                break
            time.sleep(0.05)  # a list may miss a new one, and the old one that was just removed
        else:
            raise CheckpointError(
                f"{self.url} is not a committed checkpoint: no folder in it has a {FILE_NAME}. Pass the URL that it "
                "was saved to."
            )
        first: CheckpointError | None = None
        for save in reversed(committed):
            try:
                return save, self._manifest(save, into)
            except (NewerFormatError, UnreadableError):
                raise
            except CheckpointError as error:
                first = first or error
        assert first is not None
        raise first

    def _undisturbed(self, action: Callable[[], T]) -> T:
        """Return what ``action`` returns. It is called again if another process replaces the checkpoint meanwhile."""
        attempts = Attempts.at_checkpoint(self.url)
        while True:
            attempts.begin()
            before = [save.folder for save in self._saves() if save.is_committed]
            try:
                return action()
            except (FileNotFoundError, DamagedError) as error:
                if [save.folder for save in self._saves() if save.is_committed] == before:
                    if isinstance(error, DamagedError):
                        raise
                    raise DamagedError(f"{self.url} is damaged: {error} is missing.") from error

    # -- reading -----------------------------------------------------------------------------------------------------

    def manifest(self) -> Manifest:
        """See the base class."""
        with self._errors("read"), temporary_directory() as folder:
            if "" in self._objects():
                return read_file_manifest(self._files, self._root, self.url)
            return self._undisturbed(lambda: self._current(folder)[1])

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        """See the base class."""
        with ExitStack() as stack:
            with self._errors("read"):
                folder = stack.enter_context(temporary_directory()) / last_part(self._root)
                if "" in self._objects():
                    self._files.get_file(self._root, str(folder))
                else:
                    self._undisturbed(lambda: self._copy(None, folder))
            yield folder

    def _copy(self, folder: str | None, into: Path) -> None:
        """Copy the save in ``folder``, by default the one that counts, to a directory."""
        if folder is not None and FOLDER.fullmatch(folder) is None and "" in self._objects():
            self._files.get_file(self._root, str(into))
            if f"{Manifest.read(into)}" != folder:
                raise DamagedError(f"{self.url} was replaced while it was copied.")
            return
        into.mkdir(exist_ok=True)
        if folder is None:
            save, manifest = self._current(into)
        else:
            save = next((save for save in self._saves() if save.folder == folder), Save(-1, folder, {}))
            manifest = self._manifest(save, into)
        for name in manifest.files:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(f"{self._root}/{save.path(name)}", str(into / name))

    def read(self, function: Callable[[Path], T]) -> T:
        """See the base class."""
        with self.local_copy() as folder, self._named(folder):
            return function(folder)

    def read_together(self, verify: Callable[[Path], None], function: Callable[[Path], T]) -> T:
        """See the base class."""
        results: list[T] = []
        with self.copied_together(None) as folder, self._named(folder):
            run_on_each_rank(lambda: verify(folder))
            run_on_each_rank(lambda: results.append(function(folder)))
        return results[0]

    @contextmanager
    def copied_together(self, gather: GatherObject | None) -> Iterator[Path]:
        """See the base class. On each machine, one process copies the checkpoint for all."""
        # The second part tells this process from the others on its machine.
        own = platform.node(), secrets.token_hex(8)
        all_ranks = run_on_each_rank(lambda: own, gather)
        leader = next(rank for rank, (host, _) in enumerate(all_ranks) if host == own[0])
        with ExitStack() as stack:
            folder = Path(self._copies(stack, all_ranks.index(own) == leader, gather)[leader])
            run_on_each_rank(lambda: _check_there(folder, self.url), gather)
            yield folder
            run_on_each_rank(lambda: None, gather)  # all have read it

    def _copies(self, stack: ExitStack, leads: bool, gather: GatherObject | None) -> list[str]:
        """Where each process has copied the same save to; empty if it leaves that to another one."""
        attempts = Attempts.at_checkpoint(self.url)
        while True:

            def begin() -> str:
                attempts.begin()
                return self._chosen()

            before = run_on_rank_zero(begin, gather)

            def copy() -> str:
                if not leads:
                    return ""
                with self._errors("read"):
                    folder = stack.enter_context(temporary_directory()) / last_part(self._root)
                    self._undisturbed(lambda: self._copy(before, folder))  # noqa: B023  called at once
                    return str(folder)

            try:
                return run_on_each_rank(copy, gather)
            except CoreError:
                if run_on_rank_zero(self._chosen, gather) == before:
                    raise

    def _chosen(self) -> str:
        """The folder of the save that counts; of a checkpoint of one file, what tells it from another."""
        with self._errors("read"), temporary_directory() as folder:
            if "" in self._objects():
                return f"{read_file_manifest(self._files, self._root, self.url)}"
            return self._undisturbed(lambda: self._current(folder)[0].folder)

    # -- writing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def committed(self, *, directory: bool) -> Iterator[Path]:
        """See the base class."""
        with self._errors("written"):
            self._check_free(directory)
            folder = new_folder_name(self._next_sequence()) if directory else ""
        with self._space() as staged:
            if directory:
                staged.mkdir()
            yield staged
            with self._errors("written"):
                if directory:
                    self._upload(staged, folder)
                    self._commit(staged, folder)
                elif is_checkpoint(staged):
                    set_number(staged, self._next_sequence())
                    put_whole(self._files, staged, self._root)
                    self._tidy()
                else:  # a file of another format, such as of save_model: nothing next to it is read
                    put_whole(self._files, staged, self._root)

    @contextmanager
    def committed_together(self, gather: GatherObject) -> Iterator[Path]:
        """See the base class. Each process uploads its own files."""

        def begin() -> str:
            with self._errors("written"):
                self._check_free(directory=True)
                return new_folder_name(self._next_sequence())

        def upload() -> None:
            with self._errors("written"):
                self._upload(staged, folder)

        def commit() -> None:
            with self._errors("written"):
                self._commit(staged, folder)

        folder = run_on_rank_zero(begin, gather)
        with ExitStack() as stack:
            made: list[Path] = []
            run_on_each_rank(lambda: made.append(stack.enter_context(self._space())), gather)
            staged = made[0]
            run_on_each_rank(staged.mkdir, gather)
            yield staged
            run_on_each_rank(upload, gather)
            run_on_rank_zero(commit, gather)

    @contextmanager
    def _space(self) -> Iterator[Path]:
        """A path in the temporary directory, for the files of this save."""
        try:
            with temporary_directory() as folder:
                yield folder / last_part(self._root)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.url} cannot be written: {error}. Its files are first written to "
                f"{tempfile.gettempdir()}.{remedy(error)} TMPDIR chooses another directory."
            ) from error

    def _check_free(self, directory: bool) -> None:
        """Refuse to replace what is not a checkpoint."""
        if not last_part(self._root) or not (directory or "/" in self._root):
            raise CheckpointError(f"path={self.url!r} has no file name. Use the URL of a file or checkpoint.")
        objects = self._objects()
        is_file = "" in objects
        if objects and not (grouped(objects) if directory else is_file):
            raise CheckpointError(
                f"{self.url} is {'a file' if is_file else 'a folder'}, but not a "
                f"{'checkpoint of several files' if directory else 'file'}, and was left unchanged. Choose a URL that "
                "does not exist."
            )

    def _next_sequence(self) -> int:
        """One more than the largest sequence number of the checkpoints next to it."""
        above, slash, _ = self._root.rpartition("/")
        if not slash:  # a bucket's folder cannot be listed
            return max((save.number for save in self._saves()), default=0) + 1
        objects = self._objects(above)
        numbers = [save.number for saves in grouped_by_name(objects).values() for save in saves]
        return max([*numbers, *file_numbers(self._files, above, objects).values()], default=0) + 1

    def _upload(self, staged: Path, folder: str) -> None:
        """Upload all files of this process except for the manifest."""
        files = [file for file in sorted(staged.rglob("*")) if file.is_file()]
        try:
            for file in files:
                name = file.relative_to(staged).as_posix()
                if name != FILE_NAME:
                    self._files.put_file(str(file), f"{self._root}/{folder}/{name}")
        except BaseException:
            with suppress(Exception):
                self._delete(f"{folder}/{name}" for name in self._objects(f"{self._root}/{folder}"))
            raise

    def _commit(self, staged: Path, folder: str) -> None:
        if not is_checkpoint(staged):
            raise CheckpointError(f"{self.url} cannot be committed: the directory has no {FILE_NAME}.")
        found = FOLDER.fullmatch(folder)
        assert found is not None
        set_number(staged, int(found[1]))
        deadline = time.monotonic() + _VISIBLE_SECONDS
        manifest = Manifest.read(staged)
        while True:
            try:
                manifest.compare_sizes(
                    f"{self.url}/{folder}", lambda name: visible_size(self._files, f"{self._root}/{folder}/{name}")
                )
                break
            except DamagedError as error:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"checkpoint {self.url} cannot be written: {error} Rank 0 does not see a file that was "
                        "uploaded. Use a store that all processes reach."
                    ) from error
                time.sleep(0.1)
        # Last: a save is committed when it has a manifest.
        self._files.put_file(str(staged / FILE_NAME), f"{self._root}/{folder}/{FILE_NAME}")
        self._tidy()

    def _tidy(self) -> None:
        """Remove what the new checkpoint has replaced, and uploads that were abandoned next to it."""
        try:
            for save in [save for save in self._saves() if save.is_committed][:-1]:
                self._remove_save(save)
            above, slash, _ = self._root.rpartition("/")
            root = above if slash else self._root
            remove_abandoned(self._files, root, self._objects(root))
        except Exception as error:  # noqa: BLE001  the new one is committed: the run goes on
            _log.warning("could not remove what a newer checkpoint at %s replaced: %s", self.url, error)

    # -- removing ----------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """See the base class."""
        with self._errors("removed"):
            objects = self._objects()
            if "" in objects:
                self._files.rm_file(self._root)
                return
            saves = grouped(objects)
            if objects and not saves:
                raise CheckpointError(f"{self.url} is a folder, but not a checkpoint, and was left unchanged.")
            for save in saves:  # the newest one goes last: an earlier one must not appear again
                self._remove_save(save)

    def _remove_save(self, save: Save) -> None:
        names = set(save.sizes)
        if not save.folder:  # other files may be next to it
            with temporary_directory() as folder:
                names &= {FILE_NAME, *self._manifest(save, folder).files}
        # The manifest first: what is left without it is no checkpoint.
        self._delete(save.path(name) for name in sorted(names, key=lambda name: (name != FILE_NAME, name)))
        with suppress(Exception):  # where folders are not only a part of names
            self._files.rmdir(f"{self._root}/{save.folder}".rstrip("/"))

    def _delete(self, names: Iterator[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):  # another process was faster
                self._files.rm_file(f"{self._root}/{name}")

    # -- folders -----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """See the base class."""
        with self._errors("read"):
            objects = self._objects()
            return "" in objects or any(save.is_committed for save in grouped(objects))

    def latest(self) -> str | None:
        """See the base class."""
        with self._errors("read"):
            return self._newest(self._root, self.url, besides=None)

    def newest_whole(self) -> str | None:
        """Like the base class, by the sizes of the files: their content is not read."""
        above, slash, own = self._root.rpartition("/")
        if not slash:  # a bucket
            return None
        with suppress(UnreadableError), self._errors("read"):  # the error that asks for it comes first
            return self._newest(above, self.url.removesuffix(own).rstrip("/"), besides=own)
        return None

    def _newest(self, root: str, url: str, besides: str | None) -> str | None:
        objects = self._objects(root)
        found = [(number, name) for name, number in file_numbers(self._files, root, objects).items() if name != besides]
        for name, saves in grouped_by_name(objects).items():
            committed = [save for save in saves if save.is_committed]
            if not committed or name == besides or name.startswith(RESERVED):
                continue
            number = committed[-1].number
            if number < 0:
                try:
                    number = RemoteStore(joined(url, name)).manifest().sequence
                except UnreadableError:
                    raise  # it may be the last one
                except CheckpointError:
                    pass
            found.append((number, name))
        for _, name in sorted(found, reverse=True):
            try:
                RemoteStore(joined(url, name)).manifest()
            except (NewerFormatError, UnreadableError):
                raise
            except CheckpointError as error:
                _log.warning("ignored a damaged checkpoint: %s", error)
            else:
                return joined(url, name)
        return None

    def names(self) -> list[str]:
        """See the base class."""
        with self._errors("read"):
            return sorted({name.partition("/")[0] for name in self._objects() if name})

    def new_folder(self, prefix: str) -> str:
        """See the base class. A small file in the folder tells others that it is taken."""
        with self._errors("written"):
            while True:
                folder = f"{prefix}{self.next_number(prefix)}"
                own = f".core-run-{secrets.token_hex(8)}"
                self._files.pipe_file(f"{self._root}/{folder}/{own}", b"This folder belongs to one run.\n")
                if set(self._objects(f"{self._root}/{folder}")) == {own}:
                    return joined(self.url, folder)
                self._delete(iter([f"{folder}/{own}"]))  # another run came at the same time: both take another one
                time.sleep(secrets.randbelow(1000) / 1000)  # so that they do not come at the same time again

    # -- errors ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turn whatever the store raises into a CheckpointError that names the URL."""
        try:
            yield
        except CoreError:
            raise
        except Exception as error:  # every kind of store has its own
            advice = "Check the URL, your credentials and the connection."
            own = tempfile.gettempdir()
            if isinstance(error, OSError) and (error.errno in (errno.ENOSPC, errno.EDQUOT) or own in str(error)):
                advice = f"Its files are copied to {own}: see to its space and rights, or choose another by TMPDIR."
            kind = UnreadableError if done == "read" else CheckpointError
            raise kind(f"{self.url} cannot be {done}: {type(error).__name__}: {error}. {advice}") from error

    @contextmanager
    def _named(self, copy: Path) -> Iterator[None]:
        """Name the URL, not its copy, in errors of those who read the copy."""
        try:
            yield
        except CheckpointError as error:
            error.args = tuple(str(part).replace(str(copy), self.url) for part in error.args)
            raise


def _check_there(folder: Path, url: str) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{url} cannot be read: this process does not see {folder}, to which another process on a machine of the "
            f"same name has copied it. Give each machine or container its own name (now {platform.node()!r}), and its "
            "processes one temporary directory (TMPDIR)."
        )
