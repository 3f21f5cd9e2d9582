"""``torch-hal explain``, also ``python -m core.explain``: the Plan for the given arguments, with all reasons."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .commands.terminal import Style, is_terminal, width_of
from .commands.verb_parser import VerbParser
from .discovery.metadata import check_before_torch, check_needs
from .environments.local import own_environ
from .errors import CoreError
from .kinds import KINDS

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["main", "tree"]


def main(arguments: Sequence[str] | None = None, program: str = "python -m core.explain") -> int:
    """Print the Plan; returns the exit code: 0, or 2 if the arguments are not valid here.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Show what would run for these arguments, and why. Nothing is started. Every argument defaults to "
        "'auto', for which torch-hal reads the environment variable, then the config file, before it chooses.",
        epilog=f"example: {program} --accelerator cpu --devices 2 --precision bf16-mixed",
    )
    for kind in KINDS.values():
        variable = f" ({kind.variable})" if kind.variable else ""
        parser.add_argument(_option(kind.name), default="auto", metavar="NAME", help=f"{kind.description}{variable}")
    devices = "a number, indices such as 0,2 or -1 for all (CORE_DEVICES)"
    parser.add_argument("--devices", default="auto", help=devices)
    parser.add_argument("--num-nodes", default="auto", metavar="N", help="number of machines (CORE_NUM_NODES)")
    imports = "modules to import first, separated by commas (CORE_IMPORT)"
    parser.add_argument("--import-modules", metavar="NAMES", help=imports)
    parser.add_argument("--config", metavar="FILE", help="a config file (CORE_CONFIG)")
    parser.add_argument("--json", action="store_true", help="print the Plan as JSON")
    options = vars(parser.read(arguments))
    as_json, config = options.pop("json"), options.pop("config")
    try:
        check_before_torch(os.environ)
        from .plan import Request, resolve
        from .plan.request import with_config

        environ = None if config is None else with_config(own_environ(), config)
        plan = resolve(Request.read(environ=environ, **options))
        for name, choice in plan.choices().items():
            check_needs(f"{KINDS[name].title} {choice.name!r}", choice.origin.partition(" ")[0])
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    if as_json:
        text = plan.to_json(indent=2)
    elif is_terminal(sys.stdout, os.environ):
        text = tree(plan, Style(os.environ), width_of(sys.stdout, os.environ))
    else:
        text = str(plan)
    sys.stdout.write(f"{text}\n")
    return 0


def tree(plan: Plan, style: Style, width: int) -> str:
    """The Plan as a tree: what was chosen, then why, then what was rejected and why.

    Args:
        plan: As :func:`core.plan.resolve` made it.
        style: Colours.
        width: The columns of the terminal.
    """
    from .plan.model import entries_of

    lines = [style(plan.headline, "bold")]
    entries = entries_of(plan)
    for number, entry in enumerate(entries):
        is_last = number == len(entries) - 1
        bar = "    " if is_last else "│   "
        first, *rest = textwrap.wrap(entry.value, max(width - 25, 20), break_on_hyphens=False) or [""]
        value = f"{style(first, 'green')}{style(f'  {entry.origin}', 'dim') if entry.origin else ''}"
        lines.append(f"{'└── ' if is_last else '├── '}{style(f'{entry.label:<20}', 'cyan')} {value}")
        lines += [f"{bar}{' ' * 21}{style(line, 'green')}" for line in rest]
        below = [entry.reason] if entry.reason else []
        below += [f"not {other.name}: {other.reason}" for other in entry.rejected]
        for index, text in enumerate(below):
            branch = "└── " if index == len(below) - 1 else "├── "
            room = max(width - len(bar + branch), 20)
            first, *rest = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
            more = "│   " if branch == "├── " else "    "
            dim = ("dim",) if text.startswith("not ") else ()
            lines += [bar + branch + style(first, *dim), *(bar + more + style(line, *dim) for line in rest)]
    return "\n".join(lines)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


if __name__ == "__main__":
    sys.exit(main())
