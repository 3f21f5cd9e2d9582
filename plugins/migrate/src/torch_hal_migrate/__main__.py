"""``torch-hal migrate``, also ``python -m torch_hal_migrate``: list what a script for Lightning or Accelerate needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_hal.commands.verb_parser import VerbParser

from .configs import SUFFIXES
from .report import NOTEBOOK, as_json, as_text, examine

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, program: str = "python -m torch_hal_migrate") -> int:
    """Print the report; returns the exit code: 0, 1 if something is missing, or 2 if a file cannot be read.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Read scripts written for Lightning or Accelerate, and configurations of Hydra and LightningCLI, "
        "and list what works when the import is changed, what works differently, and what is missing. The scripts are "
        "not run.",
        epilog=f"example: {program} train.py\n\nThe exit code is 1 if something is missing, and 2 if "
        "a file cannot be read. The lines of a notebook are those of its code cells, counted through.",
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a script, notebook or YAML file, or a directory with them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.read(arguments)
    findings, errors = examine(_scripts(options.files))
    report = as_json(findings)
    if findings or not errors:
        sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else as_text(findings))
    for error in errors:
        sys.stderr.write(f"{program}: {error}\n")
    return 2 if errors else 1 if report["missing"] else 0


def _scripts(paths: Sequence[str]) -> list[Path]:
    """The files, and the Python files, notebooks and YAML files in directories."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = [file for file in path.rglob("*") if file.suffix in (".py", NOTEBOOK, *SUFFIXES)]
        found += sorted(inside) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main())
