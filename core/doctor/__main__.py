"""``torch-hal doctor``, also ``python -m core.doctor``: one page for a bug report."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence

from ..commands.verb_parser import VerbParser
from ..discovery.probe import TIMED_OUT, probe
from ..discovery.scan import Row
from ..discovery.selection import survey
from ..errors import CoreError
from . import machine, processes
from .report import Check, Report, limited

_QUICK = 10.0
_LONGEST = 3600.0
_BROKEN = ("failed", "incompatible", "conflict")

_EPILOG = """\
examples:
  {program}                  the page for a bug report, on the machine with the problem
  {program} --json           the same for a program; the key "schema" has the version

Nothing is changed. torch and plugins are imported only in other processes, with a time limit each.
Values of variables that may be secrets are not shown. The exit code is 1 if a problem was found.
"""


def main(arguments: Sequence[str] | None = None, program: str = "python -m core.doctor") -> int:
    """Print the page; returns the exit code: 0, or 1 if a problem was found.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="One page for a bug report: what is installed, what is there, what is wrong, and what helps.",
        epilog=_EPILOG.format(program=program),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    limit = "seconds for each question that needs another process (default: 60)"
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help=limit)
    options = parser.read(arguments)
    if not 1.0 <= options.timeout <= _LONGEST:
        parser.error(f"--timeout {options.timeout:g} must be from 1 to {_LONGEST:g}")
    report = examine(dict(os.environ), options.timeout)
    sys.stdout.write((report.to_json() if options.json else str(report)) + "\n")
    return 1 if report.problems else 0


def examine(environ: Mapping[str, str], timeout: float) -> Report:
    """Ask all questions.

    Args:
        environ: The environment variables of the processes that answer.
        timeout: Seconds for each question that needs a separate process.
    """
    current = os.getcwd()
    report = Report(versions=machine.versions(), environment=machine.environment(environ))
    add = report.checks.extend
    add(limited("metadata", lambda: machine.check_metadata(environ), _QUICK))
    add(limited("own files", lambda: machine.check_folders(current), _QUICK))
    add(limited("variables", lambda: machine.check_variables(environ), _QUICK))
    folders = {"current directory": current, "temporary files": tempfile.gettempdir()}
    add(limited("disk", lambda: machine.check_disk(folders), _QUICK))
    add(limited("shared memory", machine.check_memory, _QUICK))
    add(limited("ports", lambda: machine.check_ports(environ), _QUICK))
    add(limited("import torch", lambda: processes.check_torch(environ, timeout), 3 * timeout))
    works = report.checks[-1].state == "ok"
    add(_plugins(report, environ, timeout, hardware=works))
    for name, check in (("plan", processes.check_plan), ("two processes", processes.check_collective)):
        if works:
            add(limited(name, lambda check=check: check(environ, timeout), 2 * timeout))  # type: ignore[misc]
        else:
            report.checks.append(Check(name, "skipped", "needs torch"))
    return report


def _plugins(report: Report, environ: Mapping[str, str], timeout: float, hardware: bool) -> list[Check]:
    """The installed backends with their states, into the report; and what is wrong with them."""
    try:
        found = survey(environ)
        if hardware:
            found.warnings += probe(found.rows, environ, hardware=True, timeout=timeout)
    except CoreError as error:
        return [Check("plugins", "problem", str(error), "Correct CORE_PLUGINS, or unset it.")]
    report.backends = [row.to_dict() for row in found.rows]
    rows = [*found.rows, *found.classes, *found.commands]
    report.plugins = {row.distribution: row.version for row in rows if row.distribution != "torch-hal"}
    checks = [_of_row(row, timeout) for row in rows if row.state in _BROKEN]
    checks += [Check("plugins", "problem", warning) for warning in found.warnings]
    checks = checks or [Check("plugins", "ok", f"{len(found.rows)} backends are installed, and none is broken")]
    # An engine that is not installed is no problem unless it was asked for: then the Plan is rejected.
    missing = {f"{row.distribution}: {row.reason}" for row in found.rows if "not installed" in row.reason}
    return checks + [Check("plugins", "skipped", each) for each in sorted(missing - {""})]


def _of_row(row: Row, timeout: float) -> Check:
    """The problems of a backend, a logger or a profiler."""
    subject, off = f"{row.kind} {row.name!r} of {row.distribution}", f"turn it off: CORE_PLUGINS=-{row.name}"
    if row.reason.startswith(TIMED_OUT):  # on a busy machine, that says nothing about the plugin
        found = f"{subject} has not answered within {timeout:g} s: it hangs, or this machine is busy"
        again = f"Ask again with more time: --timeout {min(5 * timeout, _LONGEST):g}. If it hangs then too, {off}"
        return Check("plugins", "problem", found, again, row.detail)
    remedy = f"Repair or uninstall it, or {off}"
    return Check("plugins", "problem", f"{subject} is {row.state}: {row.reason}", remedy, row.detail)


if __name__ == "__main__":
    sys.exit(main())
