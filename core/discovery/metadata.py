"""Metadata of distributions: whether what they require is installed, and files that cannot be read.

Nothing is imported, and no torch. Comparisons of release numbers are made here, with the results of ``packaging``.
Everything else (markers, extras, wildcards, pre-releases) uses ``packaging``, whose import takes longer than a whole
listing. A module that is there without metadata, as a build in a source tree is, counts as installed.

torch looks for packages that add device types to it (the entry-point group ``torch.backends``), for which
``importlib.metadata`` reads the entry points of everything that is installed. One file that it cannot read is then an
exception that names no file: it breaks ``import torch`` itself. :func:`check_before_torch` finds the file.
"""

from __future__ import annotations

import os
import sys

from ..errors import BackendError, ConfigurationError
from .scan import Damage, scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_OPERATORS = ("~=", "==", "!=", "<=", ">=", "<", ">")


def unmet(requirement: str, version: str) -> str:
    """Why ``version`` does not satisfy ``requirement``; an empty string if it does.

    Args:
        requirement: In the form of ``Requires-Dist``: ``torch-hal>=0.1,<1``.
        version: The installed version of the required distribution.
    """
    met = _plainly_met(requirement, version)
    if met is None:
        try:
            met = _met(requirement, version)
        except ValueError as error:
            return f"its requirement {requirement!r} cannot be read: {error}".splitlines()[0]
    return "" if met else f"needs {requirement}"


def _met(requirement: str, version: str) -> bool:
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    if parsed.marker is not None and not parsed.marker.evaluate({"extra": ""}):
        return True
    return parsed.specifier.contains(version, prereleases=True)


def _plainly_met(requirement: str, version: str) -> bool | None:
    """Whether it is satisfied; ``None`` if this needs ``packaging``."""
    specifiers = requirement.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.").strip()
    if specifiers.startswith("(") and specifiers.endswith(")"):
        specifiers = specifiers[1:-1].strip()
    if not specifiers:
        return True
    this = _release(version)
    if this is None:
        return None
    met = True
    for clause in specifiers.split(","):
        clause = clause.strip()
        operator = next((operator for operator in _OPERATORS if clause.startswith(operator)), "")
        other = _release(clause[len(operator) :].strip())
        if not operator or other is None or (operator == "~=" and len(other) < 2):
            return None
        met = met and _compare(this, operator, other)
    return met


def _release(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else None


def _compare(this: tuple[int, ...], operator: str, other: tuple[int, ...]) -> bool:
    width = max(len(this), len(other))
    a = this + (0,) * (width - len(this))
    b = other + (0,) * (width - len(other))
    if operator == "~=":
        return a >= b and a[: len(other) - 1] == other[:-1]
    return {"==": a == b, "!=": a != b, "<=": a <= b, ">=": a >= b, "<": a < b, ">": a > b}[operator]


def unmet_needs(distribution: str) -> list[str]:
    """The requirements of ``distribution``, without those of extras, that no installed distribution satisfies."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import InvalidRequirement, Requirement

    found: list[str] = []
    try:
        declared = requires(distribution) or []
    except PackageNotFoundError:
        return found
    for text in declared:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # discovery says so
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            if not requirement.specifier.contains(version(requirement.name), prereleases=True):
                found.append(f"{requirement.name}{requirement.specifier}")
        except PackageNotFoundError:
            if not is_there(requirement.name.replace("-", "_")):
                found.append(f"{requirement.name}{requirement.specifier}")
    return found


def check_needs(subject: str, distribution: str) -> None:
    """Reject a backend whose distribution needs what is not installed.

    Raises:
        BackendError: Something is missing; the message has the line that installs it.
    """
    if missing := unmet_needs(distribution):
        lines = " ".join(repr(each) for each in missing)
        raise BackendError(
            f"{subject} of {distribution} needs {', '.join(missing)}, which is not installed. Run: pip install {lines}"
        )


def is_there(module: str) -> bool:
    """Whether a module can be found; true for no name."""
    import importlib.util

    if not module or module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""The environment variable that, as ``0``, keeps torch from looking for packages that add device types to it."""


def unreadable(path: Sequence[str] | None = None, *, metadata: bool = False) -> list[Damage]:
    """The metadata files that cannot be read.

    Args:
        path: The folders to search; by default ``sys.path``.
        metadata: Also read every ``METADATA`` file. One that cannot be read breaks tools such as pip, but not torch.

    Returns:
        The files, in the order of the search; of a distribution that is found twice, only the first is looked at.
    """
    damaged: list[Damage] = []
    scan(path, damaged=damaged)
    if metadata:
        known = {damage.file for damage in damaged}
        damaged += [damage for damage in _undecodable(sys.path if path is None else path) if damage.file not in known]
    return damaged


def check_before_torch(environ: Mapping[str, str]) -> None:
    """Call this before ``import torch``, which would fail because of this file without naming it.

    Args:
        environ: The environment variables; nothing is checked where :data:`AUTOLOAD` is ``0``.

    Raises:
        ConfigurationError: There is such a file; the message names it, and what to do.
    """
    if environ.get(AUTOLOAD) == "0":
        return
    damaged = [damage for damage in unreadable() if damage.breaks_torch]
    if damaged:
        raise ConfigurationError(" ".join(map(str, damaged)))


def _undecodable(path: Sequence[str]) -> list[Damage]:
    found = []
    for root in path:
        try:
            children = sorted(os.listdir(root or "."))
        except (OSError, ValueError):  # what Python cannot list, it cannot import from either
            continue
        for child in children:
            if child.endswith((".dist-info", ".egg-info")):
                found += _undecodable_in(os.path.join(root, child))
    return found


def _undecodable_in(folder: str) -> list[Damage]:
    for name in ("METADATA", "PKG-INFO"):
        file = os.path.join(folder, name)
        try:
            with open(file, "rb") as opened:
                opened.read().decode()
        except UnicodeDecodeError as error:
            problem = f"it is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}"
            return [Damage(file, problem, breaks_torch=False)]
        except OSError:
            continue
    return []
