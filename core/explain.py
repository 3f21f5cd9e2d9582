"""``torch-hal explain``, also ``python -m core.explain``: the Plan for the given arguments, with all reasons."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from core.discovery.needs import check_needs
from core.discovery.unreadable import check_before_torch
from core.errors import CoreError
from core.kinds import KINDS

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, program: str = "python -m core.explain") -> int:
    """Print the Plan; returns the exit code: 0, or 2 if the arguments are not valid here.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description="Show what would run for these arguments, and why. Nothing is started. Every argument defaults to "
        "'auto', for which the environment variable is read, if there is one, before torch-hal chooses.",
    )
    for kind in KINDS.values():
        variable = f" ({kind.variable})" if kind.variable else ""
        parser.add_argument(_option(kind.name), default="auto", metavar="NAME", help=f"{kind.description}{variable}")
    devices = "a number, indices such as 0,2 or -1 for all (CORE_DEVICES)"
    parser.add_argument("--devices", default="auto", help=devices)
    parser.add_argument("--num-nodes", default="auto", metavar="N", help="number of machines (CORE_NUM_NODES)")
    imports = "modules to import first, separated by commas (CORE_IMPORT)"
    parser.add_argument("--import-modules", metavar="NAMES", help=imports)
    parser.add_argument("--json", action="store_true", help="print the Plan as JSON")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    try:
        check_before_torch(os.environ)
        from core.plan import Request, resolve

        plan = resolve(Request.read(**options))
        for name, choice in plan.choices().items():
            check_needs(f"{KINDS[name].title} {choice.name!r}", choice.origin.partition(" ")[0])
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write((plan.to_json(indent=2) if as_json else str(plan)) + "\n")
    return 0


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


if __name__ == "__main__":
    sys.exit(main())
