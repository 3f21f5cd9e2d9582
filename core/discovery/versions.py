"""A check of a version against a distribution's requirement.

Comparisons of release numbers are made here, with the results of ``packaging``. Everything else (markers, extras,
wildcards, pre-releases) uses ``packaging``, whose import takes longer than a whole listing.
"""

from __future__ import annotations

__all__ = ["unmet"]

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
