"""The state of each backend, logger and profiler, according to metadata and ``CORE_PLUGINS``; nothing is imported.

``CORE_PLUGINS`` is a list of entries separated by commas, with names of backends or distributions:

==========================  ===============================================================================
``acme``                    allows it, and denies everything that is not allowed
``-acme``                   denies it
``acme@torch-hal-acme``     resolves a conflict: the ``acme`` of that distribution is used; if other entries allow
                            backends, it is also allowed
``-acme@torch-hal-acme``    denies that distribution's ``acme``
==========================  ===============================================================================

core's own are always allowed.
"""

from __future__ import annotations

from ..errors import ConfigurationError, nearest
from ..kinds import CLASS_KINDS, COMMAND, INTERFACE, OLDEST_INTERFACE
from ..utilities.environment_variables import check_variables
from .metadata import unmet
from .scan import CORE, Damage, Row, normalized, scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VARIABLE = "CORE_PLUGINS"


class Survey:
    """The installed backends, and which of them can be used."""

    __slots__ = ("classes", "commands", "damaged", "rows", "version", "warnings")

    def __init__(
        self,
        rows: list[Row],
        version: str,
        warnings: list[str],
        classes: Sequence[Row] = (),
        damaged: Sequence[Damage] = (),
        commands: Sequence[Row] = (),
    ) -> None:
        self.rows = rows
        """All backends, ordered by kind, name, distribution."""
        self.version = version
        """core's own version; empty if it has no metadata."""
        self.warnings = warnings
        """Warnings, such as entries of ``CORE_PLUGINS`` that have no effect."""
        self.classes = classes
        """All loggers and profilers: the kinds in :data:`core.kinds.CLASS_KINDS`."""
        self.damaged = damaged
        """Metadata files of any distribution that ``importlib.metadata`` fails to read."""
        self.commands = commands
        """The verbs of installed packages."""


class _Entry:
    """One entry of ``CORE_PLUGINS``."""

    __slots__ = ("denies", "distribution", "name", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.denies = text.startswith("-")
        self.name, at, self.distribution = text.removeprefix("-").partition("@")
        if not self.name or self.name.startswith("-") or " " in text or (at and not self.distribution):
            raise ConfigurationError(
                f"{VARIABLE}: invalid entry {text!r}. Valid, separated by commas: <name> or <distribution> to allow "
                "only those, -<name> or -<distribution> to deny, <name>@<distribution> to resolve a conflict."
            )

    def matches(self, row: Row) -> bool:
        if self.distribution:
            return self.name == row.name and normalized(self.distribution) == normalized(row.distribution)
        return self.name == row.name or normalized(self.name) == normalized(row.distribution)


def survey(environ: Mapping[str, str], path: Sequence[str] | None = None) -> Survey:
    """Scan, and set the state of each row.

    Args:
        environ: The environment variables; ``CORE_PLUGINS`` is read, and misspelt ones are rejected.
        path: The folders to search; by default ``sys.path``.

    Raises:
        ConfigurationError: ``CORE_PLUGINS`` is malformed, or a variable is misspelt.
    """
    check_variables(environ)
    entries = [_Entry(entry.strip()) for entry in environ.get(VARIABLE, "").split(",") if entry.strip()]
    damaged: list[Damage] = []
    shadowed: list[str] = []
    rows = scan(path, damaged, shadowed)
    version = next((row.version for row in rows if row.is_core), "")
    plugins = [row for row in rows if not row.is_core]
    if entries:
        _deny(plugins, entries)
    _compare(plugins, version)
    _find_conflicts(rows)
    warnings = [text for entry in entries if (text := _without_effect(entry, rows))]
    if not version:
        warnings.append(f"{CORE} itself is not installed, so its own backends are missing. Run: pip install {CORE}")
    warnings += shadowed + _look_alikes(rows)
    backends = [row for row in rows if row.kind not in CLASS_KINDS and row.kind != COMMAND]
    classes = [row for row in rows if row.kind in CLASS_KINDS]
    return Survey(backends, version, warnings, classes, damaged, [row for row in rows if row.kind == COMMAND])


def why_unusable(rows: Iterable[Row]) -> str:
    """The states of all rows that claim one name, with the distributions and the reasons."""
    origins: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        origins.setdefault((row.state, row.reason), []).append(row.origin)
    return "; ".join(f"{state} ({' and '.join(of)}): {reason}" for (state, reason), of in origins.items())


def _deny(rows: list[Row], entries: list[_Entry]) -> None:
    allowing = [entry for entry in entries if not entry.denies]
    only_decide = all(entry.distribution for entry in allowing)
    for row in rows:
        denial = next((f"{VARIABLE} has {entry.text}" for entry in entries if entry.denies and entry.matches(row)), "")
        if not denial and not only_decide and not any(entry.matches(row) for entry in allowing):
            denial = f"{VARIABLE} allows only {', '.join(entry.text for entry in allowing)}"
        if not denial:
            denial = next(
                (f"{VARIABLE} has {entry.text}" for entry in allowing if _decides_against(entry, row, rows)), ""
            )
        if denial:
            row.state, row.reason = "denied", denial


def _decides_against(entry: _Entry, row: Row, rows: list[Row]) -> bool:
    return (
        bool(entry.distribution)
        and entry.name == row.name
        and not entry.matches(row)
        and any(entry.matches(other) and other.kind == row.kind for other in rows)
    )


def _compare(rows: list[Row], version: str) -> None:
    reasons: dict[tuple[str, ...], str] = {}
    for row in rows:
        if row.state == "installed":
            if row.requires not in reasons:
                reasons[row.requires] = _incompatible(row.requires, version) if row.requires else ""
            if reason := reasons[row.requires] or _other_interface(row, version):
                row.state, row.reason = "incompatible", reason


def _other_interface(row: Row, version: str) -> str:
    """Why a plugin that was written for these versions of the interface does not work with this core, and what does."""
    written_for = row.interfaces or (1,)
    if any(OLDEST_INTERFACE <= interface <= INTERFACE for interface in written_for):
        return ""
    this = f"this {CORE} {version}".rstrip()
    older = f" and supports those from {OLDEST_INTERFACE}" if OLDEST_INTERFACE < INTERFACE else ""
    declared = f"written for version {' and '.join(map(str, written_for))} of the plugin interface"
    assumed = "" if row.interfaces else ", because it declares none"
    outdated = CORE if written_for[-1] > INTERFACE else row.distribution
    return f"{declared}{assumed}; {this} has {INTERFACE}{older}. Run: pip install --upgrade {outdated}"


def _incompatible(requires: tuple[str, ...], version: str) -> str:
    if not version:
        return f"needs {', '.join(requires)}; the version of {CORE} is unknown, because it is not installed"
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
            kind = claiming[0].kind if claiming[0].kind in CLASS_KINDS else "backend"
            reason = f"{name!r} is reserved for {CORE}'s own {kind}"
        else:
            origins = " and ".join(row.origin for row in claiming)
            settings = " or ".join(f"{VARIABLE}={name}@{row.distribution}" for row in claiming)
            reason = f"{origins} claim {name!r}: ambiguous; set {settings}"
        for row in claiming:
            if not row.is_core:
                row.state, row.reason = "conflict", reason


_ALIKE = dict(zip("асеорхуіѕјһԁԛԝυοаνκιρτ", "aceopxyisjhdqwuoavkipt", strict=True))
"""Letters of other scripts that look like Latin ones."""


def _look_alikes(rows: list[Row]) -> list[str]:
    """Warnings about names that readers would take for another."""
    strange = [row for row in rows if not row.name.isascii()]
    if not strange:
        return []
    import unicodedata

    warnings = []
    for row in strange:
        text = unicodedata.normalize("NFKC", row.name).lower()
        plain = "".join(_ALIKE.get(letter, letter) for letter in text)
        if other := next((other for other in rows if other.kind == row.kind and other.name == plain), None):
            odd = next(letter for letter in row.name if not letter.isascii())
            warnings.append(
                f"{row.kind} {row.name!r} of {row.origin} looks like {other.name!r} of {other.origin}, and is another: "
                f"it has U+{ord(odd):04X} {unicodedata.name(odd, 'a character without a name')}. "
                f"To deny it, set {VARIABLE}=-{row.distribution}"
            )
    return warnings


def _without_effect(entry: _Entry, rows: list[Row]) -> str:
    matching = [row for row in rows if entry.matches(row)]
    if not matching:
        known = {row.name for row in rows} | {row.distribution for row in rows}
        near = nearest(entry.text.removeprefix("-"), sorted(known))
        return f"{VARIABLE}: {entry.text!r} does not name an installed backend or distribution.{near}"
    if entry.denies and all(row.is_core for row in matching):
        return f"{VARIABLE}: {entry.text!r} has no effect, because {CORE}'s own backends are always allowed."
    return ""
