"""Requirements of a distribution that are not installed, from metadata: an engine such as a plugin's own.

Nothing is imported. A module that is there without metadata, as a build in a source tree is, counts.
"""

from __future__ import annotations

import importlib.util
import sys

from ..errors import BackendError

__all__ = ["check_needs", "is_there", "unmet_needs"]


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
    """Refuse a backend whose distribution needs what is not installed.

    Args:
        subject: The backend, for the message.
        distribution: The distribution that it comes from.

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
    if not module or module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
