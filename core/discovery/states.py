"""The state of each backend that was found, as far as metadata and ``CORE_PLUGINS`` tell; nothing is imported.

``CORE_PLUGINS`` holds words separated by commas. A word is a backend's name or a distribution's:

==========================  ===============================================================================
``acme``                    allows it; where any word allows, what no word allows is denied
``-acme``                   denies it
``acme@torch-hal-acme``     decides a conflict: of all that claim ``acme``, the one of that distribution is used.
                            Beside allowing words it allows too
``-acme@torch-hal-acme``    denies that distribution's ``acme``
==========================  ===============================================================================

core's own backends always stay.
"""

from __future__ import annotations

from core.discovery.scan import CORE, Row, normalized, scan
from core.discovery.versions import unmet
from core.errors import ConfigurationError, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["VARIABLE", "Survey", "survey"]

VARIABLE = "CORE_PLUGINS"


class Survey:
    """What is installed, and what may be used of it."""

    __slots__ = ("rows", "version", "warnings")

    def __init__(self, rows: list[Row], version: str, warnings: list[str]) -> None:
        self.rows = rows
        """Every backend found, ordered by kind, name, distribution."""
        self.version = version
        """core's own version; empty where no metadata tells it."""
        self.warnings = warnings
        """Words of ``CORE_PLUGINS`` that have no effect, and the like."""


class _Word:
    """One word of ``CORE_PLUGINS``."""

    __slots__ = ("denies", "distribution", "name", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.denies = text.startswith("-")
        self.name, at, self.distribution = text.removeprefix("-").partition("@")
        if not self.name or self.name.startswith("-") or " " in text or (at and not self.distribution):
            raise ConfigurationError(
                f"{VARIABLE}: the word {text!r} is malformed. Valid, separated by commas: <name> or <distribution> to "
                f"allow only those, -<name> or -<distribution> to deny, <name>@<distribution> to decide a conflict."
            )

    def matches(self, row: Row) -> bool:
        if self.distribution:
            return self.name == row.name and normalized(self.distribution) == normalized(row.distribution)
        return self.name == row.name or normalized(self.name) == normalized(row.distribution)


def survey(environ: Mapping[str, str], path: Sequence[str] | None = None) -> Survey:
    """Scan, and set the state of each row.

    Args:
        environ: The environment variables; ``CORE_PLUGINS`` is read.
        path: Where to look; ``sys.path`` where nothing is given.

    Raises:
        ConfigurationError: ``CORE_PLUGINS`` is malformed.
    """
    words = [_Word(word.strip()) for word in environ.get(VARIABLE, "").split(",") if word.strip()]
    rows = scan(path)
    version = next((row.version for row in rows if row.is_core), "")
    strangers = [row for row in rows if not row.is_core]
    _deny(strangers, words)
    _compare(strangers, version)
    _find_conflicts(rows)
    warnings = [text for word in words if (text := _without_effect(word, rows))]
    if not version:
        warnings.append(
            f"{CORE} itself is not installed, so none of its own backends is found. Valid: pip install {CORE}"
        )
    return Survey(rows, version, warnings)


def _deny(rows: list[Row], words: list[_Word]) -> None:
    allowing = [word for word in words if not word.denies]
    only_decide = all(word.distribution for word in allowing)
    for row in rows:
        denial = next((f"{VARIABLE} has {word.text}" for word in words if word.denies and word.matches(row)), "")
        if not denial and not only_decide and not any(word.matches(row) for word in allowing):
            denial = f"{VARIABLE} allows only {', '.join(word.text for word in allowing)}"
        if not denial:
            denial = next((f"{VARIABLE} has {word.text}" for word in allowing if _decides_against(word, row, rows)), "")
        if denial:
            row.state, row.reason = "denied", denial


def _decides_against(word: _Word, row: Row, rows: list[Row]) -> bool:
    return (
        bool(word.distribution)
        and word.name == row.name
        and not word.matches(row)
        and any(word.matches(other) and other.kind == row.kind for other in rows)
    )


def _compare(rows: list[Row], version: str) -> None:
    reasons: dict[tuple[str, ...], str] = {}
    for row in rows:
        if row.state == "installed" and row.requires:
            if row.requires not in reasons:
                reasons[row.requires] = _incompatible(row.requires, version)
            if reasons[row.requires]:
                row.state, row.reason = "incompatible", reasons[row.requires]


def _incompatible(requires: tuple[str, ...], version: str) -> str:
    if not version:
        return f"needs {', '.join(requires)}; the version of this {CORE} is unknown, because it is not installed"
    reasons = filter(None, (unmet(requirement, version) for requirement in requires))
    return next((f"{reason}; this is {CORE} {version}" for reason in reasons), "")


def _find_conflicts(rows: list[Row]) -> None:
    claimants: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.state == "installed":
            claimants.setdefault((row.kind, row.name), []).append(row)
    for (_, name), claiming in claimants.items():
        if len(claiming) < 2:
            continue
        if any(row.is_core for row in claiming):
            reason = f"{name!r} is a name of {CORE}'s own and cannot be taken"
        else:
            origins = " and ".join(row.origin for row in claiming)
            decision = " or ".join(f"{VARIABLE}={name}@{row.distribution}" for row in claiming)
            reason = f"{origins} claim {name!r}; none of them is used. To decide: {decision}"
        for row in claiming:
            if not row.is_core:
                row.state, row.reason = "conflict", reason


def _without_effect(word: _Word, rows: list[Row]) -> str:
    matching = [row for row in rows if word.matches(row)]
    if not matching:
        known = {row.name for row in rows} | {row.distribution for row in rows}
        near = nearest(word.text.removeprefix("-"), sorted(known))
        return f"{VARIABLE}: {word.text!r} is the name of no installed backend or distribution.{near}"
    if word.denies and all(row.is_core for row in matching):
        return f"{VARIABLE}: {word.text!r} has no effect, because {CORE}'s own backends always stay."
    return ""
