"""Loggers and profilers by name: classes that an entry point names, core's own like those of any other distribution.

The entry-point group of each kind is in :data:`core.kinds.CLASS_KINDS`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..errors import BackendError, UnknownNameError, nearest, quoted
from ..kinds import CLASS_KINDS
from .loading import check_class, import_target
from .metadata import check_needs, is_there
from .scan import Row
from .selection import survey, why_unusable


def find_class(kind: str, name: str, argument: str, further: Sequence[str] = ()) -> type[Any]:
    """The class called ``name``; it is imported, and no other.

    Args:
        kind: A key of :data:`core.kinds.CLASS_KINDS`.
        name: Its name: the entry point's key.
        argument: The argument that the user gave it in, for messages.
        further: Other values of that argument, for messages.

    Raises:
        BackendError: It is broken, denied, incompatible or in conflict, or needs a package that is not installed.
        UnknownNameError: No installed distribution has this name.
    """
    rows = _rows(kind)
    holders = [row for row in rows if row.name == name]
    usable = next((row for row in holders if row.state == "installed"), None)
    subject = f"{argument}={name!r}"
    if usable is not None:
        return _load(usable, subject)
    if holders:
        names = [row.name for row in rows if row.state == "installed"]
        raise BackendError(f"{subject}: {why_unusable(holders)}. Usable: {quoted(names, near=name)}.")
    raise _unknown(kind, name, subject, rows, further)


def usable_classes(kind: str) -> list[type[Any]]:
    """Every class that can be used, ordered by name; all of them are imported."""
    found = []
    for row in _rows(kind):
        if row.state == "installed":
            try:
                found.append(_load(row, row.name))
            except BackendError:  # the user has named none of them
                continue
    return found


def class_names(kind: str) -> list[str]:
    """The names of all installed classes, whether or not their packages are installed; none is imported."""
    return [row.name for row in _rows(kind) if row.state == "installed"]


def _rows(kind: str) -> list[Row]:
    return [row for row in survey(os.environ).classes if row.kind == kind]


def _load(row: Row, subject: str) -> type[Any]:
    if not row.is_core:
        check_needs(subject, row.distribution)
        subject = f"{subject} of {row.origin}"
    try:
        loaded = check_class(import_target(row.module), row.module, CLASS_KINDS[row.kind])
    except BackendError as error:
        raise BackendError(f"{subject}: {error}") from error.__cause__
    if package := _missing_package(loaded):
        raise BackendError(
            f"{subject}: the package {package!r} is not installed. Run: pip install {package.replace('_', '-')}"
        )
    return loaded


def _missing_package(loaded: type[Any]) -> str:
    """The package that the class needs, as its attribute ``package`` says, if it is not installed."""
    package: str = getattr(loaded, "package", "")
    return "" if is_there(package) else package


def _unknown(kind: str, name: str, subject: str, rows: Sequence[Row], further: Sequence[str]) -> UnknownNameError:
    valid: list[str] = []
    absent: list[str] = []
    for row in rows:
        if row.state == "installed":
            # core's own are imported to learn what they need; a plugin that the user did not name is not
            is_absent = row.is_core and bool(_missing_package(import_target(row.module)))
            (absent if is_absent else valid).append(row.name)
    valid += further
    without = f"; not installed: {quoted(absent, near=name)}" if absent else ""
    return UnknownNameError(
        f"{subject}: there is no such {kind}.{nearest(name, [*valid, *absent])} Valid: {quoted(valid, near=name)}"
        f"{without}. Others are packages with an entry point in the group {CLASS_KINDS[kind].group!r}."
    )
