"""The doctor's findings as text and as JSON."""

from __future__ import annotations

import json
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

from attrs import asdict, define, field

from ..errors import harmless

SCHEMA = 1
"""The version of the JSON. It increases when a key is renamed or removed, or changes its meaning."""

_WIDTH = 88


@define
class Check:
    """The answer to one question."""

    name: str
    state: str
    """``ok``, ``problem``, or ``skipped``."""
    found: str
    """What was found, in one sentence."""
    remedy: str = ""
    """What to do about a problem."""
    detail: str = ""
    """Further lines, such as a traceback."""


@define
class Report:
    """One page."""

    versions: dict[str, str] = field(factory=dict)
    """The versions of Python, the system, torch, torch-hal and its dependencies, or ``not installed``."""
    plugins: dict[str, str] = field(factory=dict)
    """The versions of the distributions that provide backends."""
    environment: dict[str, str] = field(factory=dict)
    """The environment variables that a run depends on."""
    backends: list[dict[str, Any]] = field(factory=list)
    """The rows of ``torch-hal list --probe --json``."""
    checks: list[Check] = field(factory=list)

    @property
    def problems(self) -> list[Check]:
        """The checks that found a problem."""
        return [check for check in self.checks if check.state == "problem"]

    def to_json(self) -> str:
        """The page as JSON, with :data:`SCHEMA`."""
        return json.dumps({"schema": SCHEMA, "problems": len(self.problems), **asdict(self)}, indent=2)

    def __str__(self) -> str:
        return "\n".join(harmless(line, 2000, keep="") for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for title, facts in (("VERSIONS", self.versions | self.plugins), ("ENVIRONMENT VARIABLES", self.environment)):
            yield title
            yield from (f"  {name}  {value}" for name, value in facts.items())
            if not facts:
                yield "  none that a run depends on"
            yield ""
        yield "BACKENDS"
        by_kind: dict[str, list[str]] = {}
        for row in self.backends:
            count = row.get("devices")
            devices = "" if count is None or not count else f" ({count} device{'s' * (count != 1)})"
            state = "" if row["state"] in ("available", "installed") else f" ({row['state']})"
            by_kind.setdefault(row["kind"], []).append(f"{row['name']}{state or devices}")
        for kind, names in by_kind.items():
            yield from _wrapped(f"  {kind}: ", ", ".join(names))
        yield ""
        yield "CHECKS"
        for check in self.checks:
            state = check.state.upper() if check.state == "problem" else check.state
            yield from _wrapped(f"  {state:<8} {check.name}: ", check.found)
            if check.remedy:
                yield from _wrapped("           remedy: ", check.remedy)
            yield from (f"           | {line}" for line in check.detail.rstrip().splitlines()[-12:])
        yield ""
        count = len(self.problems)
        yield f"{count} problem{'s' * (count != 1)} found." if count else "No problem found."


def _wrapped(start: str, text: str) -> list[str]:
    below = " " * 11
    return textwrap.wrap(
        text, _WIDTH, initial_indent=start, subsequent_indent=below, break_on_hyphens=False, break_long_words=False
    ) or [start.rstrip()]


def limited(name: str, check: Callable[[], list[Check]], seconds: float) -> list[Check]:
    """Return what ``check`` returns. If it raises or takes too long, report that as a separate problem.

    A file system that does not answer blocks a thread for good; a daemon thread does not keep the process from ending.
    """
    found: list[Check] = []

    def run() -> None:
        try:
            found.extend(check())
        except Exception as error:  # noqa: BLE001  whatever is broken here, the other answers count
            found.append(Check(name, "problem", f"could not be checked: {type(error).__name__}: {error}"))

    thread = threading.Thread(target=run, daemon=True, name=f"core-doctor-{name}")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        remedy = "A file system or a name server may not answer. Try again with a larger --timeout."
        return [Check(name, "problem", f"no answer within {seconds:g} s", remedy)]
    return found
