"""Commit a checkpoint to its path, completely or not at all.

A checkpoint is written into a staging directory next to its path, synced to disk, and moved to its path by one rename.
That replaces a file. It cannot replace a directory: an existing one is first set aside under a fixed name, from which
it is read until the new one is in place::

    .core-tmp-<host>+<random>/NAME     written and synced            load(NAME) -> old
    NAME -> .core-old/NAME             the old one is set aside      load(NAME) -> old, from .core-old/NAME
    .core-tmp-.../NAME -> NAME         the new one is committed      load(NAME) -> new
    .core-old/NAME -> .core-tmp-.../   and is deleted from there

So a directory with either name is always complete, even if the process or the machine dies between two steps. A staging
directory is locked while its process lives; the next save in the same place deletes those that are not locked.

Only the files that a manifest lists are deleted. Others that someone put next to them stay, in the new checkpoint.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from ..errors import CheckpointError, WrongTypeError
from .directories import is_checkpoint, is_damaged, number, unlisted_files
from .disk_remedies import UNCHANGED, remedy
from .manifest import FILE_NAME

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger(__name__)

_COLLAPSED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
RESERVED = ".core-"
"""The prefix of torch-hal's own directories next to checkpoints. No checkpoint has a name with it."""
_STAGE = ".core-tmp-"
_ASIDE = ".core-old"
"""The directory for checkpoints that are being replaced."""


def locate(path: str | os.PathLike[str]) -> Path:
    """The current location of the checkpoint ``path``: there, or set aside by a save that was killed halfway.

    Raises:
        CheckpointError: There can be no file with this path.
    """
    target = local_path(path)
    aside = _aside(target)
    return aside if not os.path.lexists(target) and os.path.lexists(aside) else target


def set_aside_names(directory: Path) -> list[str]:
    """Names in ``directory`` whose checkpoint was set aside; there may be no newer one."""
    try:
        return os.listdir(directory / _ASIDE)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_local(path: str | os.PathLike[str]) -> None:
    """See :func:`core.checkpoints.remove_committed`. Does not follow links.

    Files in the directory that the manifest does not list stay there.
    """
    target = _own(local_path(path))
    try:
        _refuse_foreign(target)
        # The one set aside goes first: it would be found again after its successor is removed.
        present = [item for item in (_aside(target), target) if os.path.lexists(item)]
        if not present:
            return
        with _staging(target.parent) as stage:
            for place, item in enumerate(present):
                _take_away(item, stage, str(place))
            _remove_empty(target.parent / _ASIDE)
            _sync(target.parent)
    except OSError as error:
        left = _left_of(locate(target))
        raise CheckpointError(f"checkpoint {target} cannot be removed: {error}.{remedy(error)} {left}") from error


def _left_of(directory: Path) -> str:
    if not os.path.lexists(directory):
        return "It is not there any more."
    with suppress(OSError):
        if _is_directory(directory) and not is_checkpoint(directory):
            return "What is left there is no checkpoint any more."
    return "It is still there."


def _take_away(item: Path, stage: Path, name: str) -> None:
    """Move ``item`` into ``stage``, except for files that are not the checkpoint's."""
    foreign = unlisted_files(item)
    if not foreign:
        os.rename(item, stage / name)
        return
    _log.warning("%s was removed; files that do not belong to the checkpoint stay there: %s", item, foreign[:10])
    (stage / name).mkdir()
    os.rename(item / FILE_NAME, stage / name / FILE_NAME)  # from here on, it is not a checkpoint
    for entry in os.listdir(item):
        if not any(Path(file).parts[0] == entry for file in foreign):
            os.rename(item / entry, stage / name / entry)


@contextmanager
def committed_local(path: str | os.PathLike[str], *, directory: bool) -> Iterator[Path]:
    """See :func:`core.checkpoints.committed_directory` and, for one file, :func:`core.checkpoints.committed_file`."""
    target = _own(local_path(path))
    placed = False
    try:
        with directories_made(target.parent):
            _refuse_foreign(target)
            _delete_abandoned(target.parent)
            with _staging(target.parent) as stage:
                if os.path.lexists(target):
                    _retire(target, stage, "rest")  # what a save that was killed did not get to
                staged = stage / target.name
                if directory:
                    staged.mkdir()
                yield staged
                if is_checkpoint(staged):
                    number(staged, target.parent)
                elif directory:
                    raise CheckpointError(f"{target} cannot be committed: the directory has no {FILE_NAME}.")
                _sync_tree(staged)
                _take_place(staged, target)
                placed = True
                _sync(target.parent)
                _retire(target, stage)
    except OSError as error:
        if placed:
            raise CheckpointError(
                f"checkpoint {target} is in place, but may be lost if the machine fails now: its directory cannot be "
                f"synced to disk: {error}.{remedy(error)}"
            ) from error
        with write_errors(target):
            raise


def commit_link(path: str | os.PathLike[str], checkpoint: str | os.PathLike[str]) -> None:
    """Make ``path`` a link to ``checkpoint``, in place of the link that is there.

    Raises:
        CheckpointError: It cannot be made, as in a file system without links.
    """
    link = _own(local_path(path))
    try:
        _delete_abandoned(link.parent)
        with _staging(link.parent) as stage:
            os.symlink(os.path.relpath(local_path(checkpoint), link.parent), stage / link.name)
            os.replace(stage / link.name, link)
            _sync(link.parent)
    except OSError as error:
        raise CheckpointError(
            f"link {link} to a checkpoint cannot be made: {error}. Not every file system has links: save_last=True "
            "writes a checkpoint instead."
        ) from error


def _take_place(staged: Path, target: Path) -> None:
    """Rename ``staged`` to ``target``."""
    aside = _aside(target)
    set_aside = os.path.lexists(target) and (_is_directory(staged) or _is_directory(target))
    if set_aside:
        if os.path.lexists(aside):
            os.rename(aside, staged.with_name(_other_name(target, "stale")))
        _set_aside(target, aside)
    try:
        os.replace(staged, target)
    except BaseException:
        if set_aside and not os.path.lexists(target):
            os.rename(aside, target)
        raise


def _set_aside(target: Path, aside: Path) -> None:
    while True:
        with suppress(FileExistsError):
            aside.parent.mkdir()
        try:
            os.rename(target, aside)
        except FileNotFoundError:
            if os.path.lexists(target) and not aside.parent.exists():
                continue  # another save has removed the empty directory
            raise
        return


def _retire(target: Path, stage: Path, name: str = "old") -> None:
    """Move the previous checkpoint to where it is deleted. The new one is committed: a failure here is only logged."""
    aside = _aside(target)
    try:
        if os.path.lexists(aside):
            _carry_over(aside, target)
            os.rename(aside, stage / _other_name(target, name))
        _remove_empty(aside.parent)
    except OSError as error:
        _log.warning("could not remove %s, which a newer checkpoint replaced: %s", aside, error)


def _carry_over(old: Path, new: Path) -> None:
    """Move the files that are not the old checkpoint's into the new one, where none has the same name."""
    for name in unlisted_files(old):
        if not _is_directory(new):
            _keep(old)
            return
        if not os.path.lexists(new / name):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(old / name, new / name)


def _keep(directory: Path) -> Path:
    """Give ``directory`` another name, under which it stays."""
    parent = directory.parent if directory.parent.name != _ASIDE else directory.parent.parent
    # File systems allow 255 bytes for a name, here with what is added.
    short = os.fsdecode(os.fsencode(directory.name)[:200])
    for count in range(1, 1000):
        kept = parent / f"{short}.damaged-{count}"
        if not os.path.lexists(kept):
            os.rename(directory, kept)
            return kept
    raise FileExistsError(f"there are too many copies of {directory}")


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):  # it holds another checkpoint, or does not exist
        directory.rmdir()


def _other_name(target: Path, name: str) -> str:
    """A name in the staging directory for another directory than the target."""
    return name if name != target.name else f"{name}er"


# -- the staging directory ---------------------------------------------------------------------------------------


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory in this machine's temporary directory, deleted at the end; the next one deletes what kills left."""
    parent = Path(tempfile.gettempdir())
    _delete_abandoned(parent)
    with _staging(parent) as stage:
        yield stage


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A new hidden directory in ``parent``, deleted with its content at the end."""
    stage, lock = _create_stage(parent)
    try:
        yield stage
    finally:
        _delete(stage, lock)


def _create_stage(parent: Path) -> tuple[Path, int | None]:
    while True:
        stage = Path(tempfile.mkdtemp(prefix=_stage_prefix(), dir=parent))
        lock, held_by_other = _lock(stage)
        try:
            if stage.exists() and not held_by_other:
                return stage, lock
        except BaseException:
            _delete(stage, lock)
            raise
        if lock is not None:  # another process deleted it as abandoned before it was locked
            os.close(lock)


def _delete_abandoned(parent: Path) -> None:
    """Delete the staging directories in ``parent`` whose process is known to be dead."""
    prefix = _stage_prefix()
    for name in os.listdir(parent):
        if name.startswith(prefix):
            lock, _ = _lock(parent / name)
            if lock is not None:
                _delete(parent / name, lock)


def _stage_prefix() -> str:
    # Other hosts that share the file system may not see the locks: each deletes only its own. No host name has a +.
    return f"{_STAGE}{platform.node()}+"


def _lock(directory: Path) -> tuple[int | None, bool]:
    """Lock ``directory`` for as long as the returned descriptor is open.

    Returns:
        The descriptor, ``None`` if it cannot be locked; and whether that is because another process holds the lock.
    """
    if sys.platform == "win32":
        return None, False
    descriptor = -1
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # gone, not a directory, locked, or a file system without locks
        if descriptor != -1:
            os.close(descriptor)
        return None, isinstance(error, BlockingIOError)
    return descriptor, False


def _delete(stage: Path, lock: int | None) -> None:
    """Delete a staging directory and its lock. A failure is only logged: what was committed is in place."""
    try:
        shutil.rmtree(stage)
    except OSError as error:
        if os.path.lexists(stage):  # else another process was faster
            _log.warning("could not remove the temporary directory %s: %s", stage, error)
    if lock is not None:
        with suppress(OSError):  # the descriptor is closed all the same
            os.close(lock)


@contextmanager
def write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError of a save to ``path`` into a CheckpointError that names it, the cause and a remedy."""
    try:
        yield
    except OSError as error:
        # A part of a checkpoint is itself written into a staging directory, which is gone when this is read.
        place = path
        if "://" not in os.fspath(path):
            place = Path(*(part for part in local_path(path).parts if not part.startswith(_STAGE)))
        raise CheckpointError(f"checkpoint {place} cannot be written: {error}.{remedy(error)}{_kept(place)}") from error


def _kept(path: str | os.PathLike[str]) -> str:
    """The message about an earlier checkpoint at ``path``, before a new one replaces it."""
    return UNCHANGED if "://" in os.fspath(path) or os.path.lexists(locate(path)) else ""


# -- paths and disks -----------------------------------------------------------------------------------------------


def local_path(path: str | os.PathLike[str]) -> Path:
    """``path``, absolute; the path of a ``file://`` URL.

    Raises:
        CheckpointError: There can be no file with this path.
        WrongTypeError: It is not a path.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise WrongTypeError(f"path={path!r} must be a string or a path, not {type(path).__name__}.") from None
    if "\0" in text:
        raise CheckpointError(f"path={text!r} has a NUL character. Use the path of a file or directory.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise CheckpointError(f"path={text!r} cannot be the name of a file: {error}.") from None
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        raise CheckpointError(
            f"path={text!r} is a URL, and this needs a path of this machine. In a CheckpointIO of your own, read from "
            "what core.checkpoints.local_copy(path) yields."
        )
    if (scheme := _COLLAPSED.match(text)) is not None:
        raise CheckpointError(
            f"path={text!r} is what a pathlib.Path leaves of a URL. Pass the URL as a string: "
            f"'{scheme[1]}://{text[scheme.end() :]}'."
        )
    target = Path(os.path.abspath(text))
    if not text or not target.name:
        raise CheckpointError(f"path={text!r} has no file name. Use the path of a file or directory.")
    return target


def _own(target: Path) -> Path:
    """Refuse names that the saves of other checkpoints use, and delete."""
    for name in (target.name, target.parent.name):
        if (name == target.name and name.startswith(RESERVED)) or name == _ASIDE or _is_stage(name):
            raise CheckpointError(f"path={str(target)!r}: {name!r} is reserved for torch-hal. Use another name.")
    return target


def _is_stage(name: str) -> bool:
    return name.startswith(_STAGE) and "+" in name


def _aside(target: Path) -> Path:
    return target.parent / _ASIDE / target.name


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _refuse_foreign(target: Path) -> None:
    """Refuse a directory that is not a checkpoint, unless it is empty: then it is removed.

    If its manifest is damaged, it is not known to be one: it stays, under another name.
    """
    if not _is_directory(target) or is_checkpoint(target):
        return
    if is_damaged(target):
        kept = _keep(target)
        _log.warning("%s has a damaged %s; it was kept as %s", target, FILE_NAME, kept)
        return
    if os.listdir(target):
        raise CheckpointError(
            f"{target} is a directory, but not a checkpoint, and was left unchanged. Choose the path of a "
            f"checkpoint, or one that does not exist."
        )
    target.rmdir()


@contextmanager
def directories_made(path: Path, *, if_possible: bool = False) -> Iterator[None]:
    """Make the directory ``path`` and those above it; if the block raises, those that this made and are empty go."""
    made: list[Path] = []
    try:
        with suppress(OSError) if if_possible else nullcontext():
            _make_directories(path, made)
        yield
    except BaseException:
        with suppress(OSError):  # another one has put something there
            for directory in reversed(made):
                directory.rmdir()
        raise


def _make_directories(path: Path, made: list[Path]) -> None:
    if not path.is_dir():
        _make_directories(path.parent, made)
        try:
            path.mkdir()
        except FileExistsError as error:
            if path.is_symlink() and not path.is_dir():
                raise FileExistsError(error.errno, "Link to a directory that is not there", str(path)) from None
            if not path.is_dir():
                raise
        else:
            made.append(path)
        _sync(path.parent)


def _sync_tree(path: Path) -> None:
    """Sync ``path`` and everything below it to disk."""
    if path.is_dir():
        for entry in path.iterdir():
            if not entry.is_symlink():
                _sync_tree(entry)
    _sync(path)


def _sync(path: Path) -> None:
    """Sync one file's content, or one directory's entries, to disk."""
    is_directory = path.is_dir()
    flags = os.O_RDONLY
    if sys.platform == "win32":
        if is_directory:
            return
        flags = os.O_RDWR
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems write directories synchronously and have no fsync for them.
        if not is_directory or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
