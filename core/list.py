"""``torch-hal list``, also ``python -m core.list``: the installed backends and the state of each.

Without ``--probe`` and ``--verbose`` it reads only installed metadata and imports next to nothing.
"""

from __future__ import annotations

import os
import sys

from .discovery.selection import survey
from .errors import LONGEST_NAME, CoreError, harmless, nearest, quoted
from .kinds import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .discovery.scan import Row
    from .discovery.selection import Survey

    Draw = Callable[[str, list[Row], bool], str]

__all__ = ["main"]

USAGE = """\
usage: {program} [--kind KIND] [--probe] [--timeout S]
                 [--verbose] [--json] [--strict]

Show the installed backends by kind, and the state of each.

  --kind KIND    show only this kind; can be repeated
  --probe        import every backend and query its hardware, in a separate
                 process: available (n devices), unavailable or failed
  --timeout S    time limit of --probe and --verbose for each plugin and each
                 backend, in seconds (default: 10)
  --verbose      explain the state of each backend: import the plugins' hook
                 modules in a separate process, and show tracebacks
  --json         print JSON
  --strict       exit with 1 if a backend is failed, incompatible or in conflict
  --help         show this text

{kinds}

CORE_PLUGINS=name,... allows only these plugins, CORE_PLUGINS=-name denies one.
On a terminal the tables have colours, unless NO_COLOR is set.

example: {program} --probe --kind accelerator
"""

SCHEMA = 1
"""The version of the format of ``--json``, which ``list.schema.json`` describes. It changes if a field is removed or
gets another meaning, not if one is added."""

_WIDTH = 80
_BROKEN = ("failed", "incompatible", "conflict")
_SWITCHES = ("--probe", "--verbose", "--json", "--strict", "--help")


class _Options:
    """The options of the command line."""

    __slots__ = ("kinds", "switches", "timeout")

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.switches: set[str] = set()
        self.timeout = 10.0


class _UsageError(Exception):
    """An invalid command line."""


def main(
    arguments: Sequence[str] | None = None,
    program: str = "python -m core.list",
    environ: Mapping[str, str] | None = None,
) -> int:
    """Print the listing; returns the exit code: 0, 1 with ``--strict``, or 2 for an invalid command line or setting.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
        environ: The environment variables; this process's own by default.
    """
    environ = os.environ if environ is None else environ
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack characters of a name
    try:
        options = _parse(sys.argv[1:] if arguments is None else arguments)
        if "--help" in options.switches:
            kinds = "\n".join(_wrapped(f"KIND is one of {', '.join(KINDS)}.", ""))
            sys.stdout.write(USAGE.format(program=program, kinds=kinds))
            return 0
        found = survey(environ)
        found.warnings += map(str, found.damaged)
        if options.switches & {"--probe", "--verbose"}:
            _probe(found, environ, options)
    except (_UsageError, CoreError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    rows = [row for row in found.rows if not options.kinds or row.kind in options.kinds]
    if "--json" in options.switches:
        sys.stdout.write(_json(found, rows))
    else:
        draw = None
        if sys.stdout.isatty():  # only then is the time spent to import it
            from .commands.list_view import drawing

            draw = drawing(sys.stdout, environ, _headed, _below)
        sys.stdout.write(_text(found, rows, "--verbose" in options.switches, draw))
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
            valid = ("--kind", "--timeout", *_SWITCHES)
            kind = argument.lstrip("-").replace("-", "_")
            near = f" Did you mean '--kind {kind}'?" if kind in KINDS else nearest(option, valid)
            what = "unknown option" if argument.startswith("-") else "unexpected argument"
            raise _UsageError(f"{what} {argument!r}.{near} Valid: {', '.join(valid)}.")
    return options


def _kind(text: str) -> str:
    if text not in KINDS:
        raise _UsageError(f"--kind {text!r} is not a kind of backend.{nearest(text, KINDS)} Valid: {quoted(KINDS)}.")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 86400.0:
        raise _UsageError(f"--timeout {text!r} is not a number of seconds. Give more than 0 and less than 86400.")
    return seconds


def _probe(found: Survey, environ: Mapping[str, str], options: _Options) -> None:
    from .discovery.probe import probe

    hardware = "--probe" in options.switches
    found.warnings += probe(found.rows, environ, hardware=hardware, timeout=options.timeout, kinds=options.kinds)


def _json(found: Survey, rows: Iterable[Row]) -> str:
    import json

    listing = {
        "schema": SCHEMA,
        "version": found.version,
        "backends": [row.to_dict() for row in rows],
        "warnings": found.warnings,
    }
    return json.dumps(listing, indent=2) + "\n"


def _text(found: Survey, rows: list[Row], verbose: bool, draw: Draw | None = None) -> str:
    tables = [
        draw(kind, of_kind, verbose) if draw is not None else "\n".join(_table(kind, of_kind, verbose))
        for kind in KINDS
        if (of_kind := [row for row in rows if row.kind == kind])
    ]
    if not rows:
        tables.append("No backend is installed.")
    if found.warnings:
        tables.append("\n".join(line for text in found.warnings for line in _wrapped(f"warning: {text}", "")))
    return "\n\n".join(tables) + "\n"


def _table(kind: str, rows: list[Row], verbose: bool) -> Iterator[str]:
    titles, cells = _headed(kind, rows)
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    widths[0] = max(4, min(widths[0], _WIDTH - sum(width + 2 for width in widths[1:])))
    yield _line(titles, widths)
    for row, row_cells in zip(rows, cells, strict=True):
        yield _line(row_cells, widths)
        yield from _below(row, verbose)


def _headed(kind: str, rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """The titles of a table, and the cells of each of its rows; the state comes last."""
    with_aliases = any(row.aliases for row in rows)
    titles = [KINDS[kind].title.upper(), *(["ALIASES"] if with_aliases else []), "DISTRIBUTION", "STATE"]
    return titles, [_cells(row, with_aliases) for row in rows]


def _below(row: Row, verbose: bool) -> Iterator[str]:
    """The lines below a row: why it has its state, if that is of interest."""
    if verbose:
        yield from _explanation(row)
    elif row.reason and row.state not in ("installed", "available"):
        yield from _wrapped(row.reason)


def _cells(row: Row, with_aliases: bool) -> list[str]:
    state = row.state
    if row.devices is not None and state == "available":
        state = f"available ({row.devices} device{'s' * (row.devices != 1)})"
    cells = [row.name or "''", *([", ".join(row.aliases or ())] if with_aliases else []), row.origin, state]
    return [harmless(cell, LONGEST_NAME, keep="") for cell in cells]


def _line(cells: list[str], widths: list[int]) -> str:
    gap = f"\n{'':{widths[0]}}" if len(cells[0]) > widths[0] else ""
    rest = "  ".join(cell.ljust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return f"{cells[0]:{widths[0]}}{gap}  {rest}".rstrip()


def _explanation(row: Row) -> Iterator[str]:
    if row.reason:
        yield from _wrapped(row.reason)
    elif row.state == "installed":
        yield from _wrapped("its plugin provides it; the hardware was not queried (see --probe)")
    yield from _wrapped(f"declared in {row.location}" + (f", hook module {row.module}" if row.module else ""))
    if row.seconds is not None:
        yield from _wrapped(f"probed in {row.seconds:.3f} s")
    if row.requires:
        yield from _wrapped(f"requires {', '.join(row.requires)}")
    if row.interfaces:
        yield from _wrapped(f"written for version {' and '.join(map(str, row.interfaces))} of the plugin interface")
    for line in row.detail.rstrip().splitlines():
        yield f"    | {harmless(line, keep='')}"


def _wrapped(text: str, indent: str = "    ") -> Iterator[str]:
    line = ""
    for part in harmless(text).split():
        if line and len(indent) + len(line) + 1 + len(part) > _WIDTH:
            yield indent + line
            line = part
        else:
            line = f"{line} {part}" if line else part
    if line:
        yield indent + line


if __name__ == "__main__":
    sys.exit(main())
