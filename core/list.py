"""``python -m core.list``: the installed backends, and the state of each.

Without ``--probe`` and ``--verbose`` only installed metadata is read, and next to nothing is imported.
"""

from __future__ import annotations

import os
import sys

from core.discovery.states import survey
from core.errors import CoreError, quoted
from core.kinds import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from core.discovery.scan import Row
    from core.discovery.states import Survey

__all__ = ["main"]

USAGE = """\
usage: python -m core.list [--kind KIND] [--probe] [--timeout S] [--verbose]
                           [--json] [--strict]

The installed backends by kind, and the state of each.

  --kind KIND    only this kind; may be given several times
  --probe        import every backend and ask the hardware, in a process of its
                 own: available (n devices), unavailable, failed
  --timeout S    seconds for each step of --probe and --verbose (default 10)
  --verbose      why each backend is in its state; imports the plugins' light
                 modules in a process of its own, and shows tracebacks
  --json         for machines
  --strict       exit with 1 if a backend is failed, incompatible or in conflict
  --help         this text

{kinds}

CORE_PLUGINS=name,... allows only these plugins, CORE_PLUGINS=-name denies one.
"""

_WIDTH = 80
_BROKEN = ("failed", "incompatible", "conflict")
_SWITCHES = ("--probe", "--verbose", "--json", "--strict", "--help")


class _Options:
    """What the command line says."""

    __slots__ = ("kinds", "switches", "timeout")

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.switches: set[str] = set()
        self.timeout = 10.0


class _UsageError(Exception):
    """A command line that cannot be understood."""


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the listing; returns the exit code.

    Args:
        arguments: The command line, without the program's name.
        environ: The environment variables.
    """
    try:
        options = _parse(arguments)
        if "--help" in options.switches:
            sys.stdout.write(USAGE.format(kinds="\n".join(_wrapped(f"KIND is one of {', '.join(KINDS)}.", ""))))
            return 0
        found = survey(environ)
        if options.switches & {"--probe", "--verbose"}:
            _probe(found, environ, options)
    except (_UsageError, CoreError) as error:
        sys.stderr.write(f"core.list: {error}\n")
        return 2
    rows = [row for row in found.rows if not options.kinds or row.kind in options.kinds]
    sys.stdout.write(
        _json(found, rows) if "--json" in options.switches else _text(found, rows, "--verbose" in options.switches)
    )
    return 1 if "--strict" in options.switches and any(row.state in _BROKEN for row in rows) else 0


def _parse(arguments: Sequence[str]) -> _Options:
    options = _Options()
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        option = {"-v": "--verbose", "-h": "--help"}.get(option, option)
        if option in ("--kind", "--timeout"):
            value = value if equals else next(rest, "")
            if option == "--kind":
                options.kinds.append(_kind(value))
            else:
                options.timeout = _seconds(value)
        elif option in _SWITCHES and not equals:
            options.switches.add(option)
        else:
            raise _UsageError(f"{argument!r} is no option. Valid: {', '.join(('--kind', '--timeout', *_SWITCHES))}.")
    return options


def _kind(text: str) -> str:
    if text not in KINDS:
        raise _UsageError(f"--kind {text!r} is no kind of backend. Valid: {quoted(KINDS)}.")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 86400.0:
        raise _UsageError(f"--timeout {text!r} is no number of seconds. Valid: more than 0, less than a day.")
    return seconds


def _probe(found: Survey, environ: Mapping[str, str], options: _Options) -> None:
    from core.discovery.probe import probe

    hardware = "--probe" in options.switches
    found.warnings += probe(found.rows, environ, hardware=hardware, timeout=options.timeout, kinds=options.kinds)


def _json(found: Survey, rows: Iterable[Row]) -> str:
    import json

    listing = {"version": found.version, "backends": [row.to_dict() for row in rows], "warnings": found.warnings}
    return json.dumps(listing, indent=2) + "\n"


def _text(found: Survey, rows: list[Row], verbose: bool) -> str:
    tables = [
        "\n".join(_table(kind, of_kind, verbose)) for kind in KINDS if (of_kind := [r for r in rows if r.kind == kind])
    ]
    if not rows:
        tables.append("nothing is installed")
    if found.warnings:
        tables.append("\n".join(line for text in found.warnings for line in _wrapped(f"warning: {text}", "")))
    return "\n\n".join(tables) + "\n"


def _table(kind: str, rows: list[Row], verbose: bool) -> Iterator[str]:
    with_aliases = any(row.aliases for row in rows)
    titles = [kind.upper().replace("_", " "), *(["ALIASES"] if with_aliases else []), "DISTRIBUTION", "STATE"]
    cells = [_cells(row, with_aliases) for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    widths[0] = max(4, min(widths[0], _WIDTH - sum(width + 2 for width in widths[1:])))
    yield _line(titles, widths)
    for row, row_cells in zip(rows, cells, strict=True):
        yield _line(row_cells, widths)
        if verbose:
            yield from _explanation(row)
        elif row.reason and row.state not in ("installed", "available"):
            yield from _wrapped(row.reason)


def _cells(row: Row, with_aliases: bool) -> list[str]:
    state = row.state
    if row.devices is not None and state == "available":
        state = f"available ({row.devices} device{'s' * (row.devices != 1)})"
    return [row.name or "''", *([", ".join(row.aliases or ())] if with_aliases else []), row.origin, state]


def _line(cells: list[str], widths: list[int]) -> str:
    gap = f"\n{'':{widths[0]}}" if len(cells[0]) > widths[0] else ""
    rest = "  ".join(cell.ljust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return f"{cells[0]:{widths[0]}}{gap}  {rest}".rstrip()


def _explanation(row: Row) -> Iterator[str]:
    if row.reason:
        yield from _wrapped(row.reason)
    elif row.state == "installed":
        yield from _wrapped("its plugin's module was imported and handed it over; no hardware was asked (--probe)")
    yield from _wrapped(f"declared in {row.location}" + (f" as {row.module}" if row.module else ""))
    if row.requires:
        yield from _wrapped(f"requires {', '.join(row.requires)}")
    for line in row.detail.rstrip().splitlines():
        yield f"    | {line}"


def _wrapped(text: str, indent: str = "    ") -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(indent) + len(line) + 1 + len(word) > _WIDTH:
            yield indent + line
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield indent + line


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:], os.environ))
