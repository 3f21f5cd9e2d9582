"""Remedies for errors of a disk."""

from __future__ import annotations

import errno

_FILES = "Close files that the script keeps open, or raise the limit of open files (ulimit -n)."
_EVERYWHERE = {
    errno.EIO: "The disk or the network file system fails. Check it, or use another one.",
    errno.ESTALE: "The network file system has replaced or lost the directory. Check its server and its mount.",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}
FAILURES = frozenset({*_EVERYWHERE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN})
"""Errors of a disk, of its server or of this process's limits. They do not tell what is there."""
_WRITING = {
    **_EVERYWHERE,
    errno.ENOSPC: "Free space (or inodes) there, or save to another disk.",
    errno.EDQUOT: "Free space in your quota, or save to another disk.",
    errno.EFBIG: "Raise the limit on the size of files, or save to another disk.",
    errno.EACCES: "Give this user the right to write there, or choose another directory.",
    errno.EPERM: "Give this user the right to write there, or choose another directory.",
    errno.EROFS: "Mount the file system for writing, or choose another directory.",
}
_REMOVED = "The directory was removed or moved during the save. Keep it until the run has ended."
UNCHANGED = " An earlier checkpoint is unchanged."
"""The earlier checkpoint, before the new one replaces it."""


def remedy(error: OSError) -> str:
    """A space and a remedy for an error when writing; empty if none is known."""
    advice = _REMOVED if error.errno == errno.ENOENT else _WRITING.get(error.errno or 0)
    return "" if advice is None else f" {advice}"


def reading_remedy(error: OSError) -> str:
    """A space and a remedy for an error when reading; empty if none is known."""
    advice = _EVERYWHERE.get(error.errno or 0)
    return "" if advice is None else f" {advice}"
