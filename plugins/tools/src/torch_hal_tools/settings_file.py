"""The verb ``torch-hal config``: ask for the settings of a run, and write them into one file."""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_hal.commands.terminal import width_of
from torch_hal.commands.verb_parser import VerbParser
from torch_hal.errors import CoreError
from torch_hal.kinds import KINDS

__all__ = ["main"]

_OTHERS = {
    "devices": "which devices of each machine: a number, indices such as 0,2, or -1 for all",
    "num_nodes": "number of machines",
}
_MACHINES = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "0"}
"""What a launcher sets on several machines, without which no Plan is made for them."""


def settings() -> dict[str, str]:
    """What the file may have, by argument: what it means."""
    from torch_hal.plan import VARIABLES

    return {name: KINDS[name].description if name in KINDS else _OTHERS[name] for name in VARIABLES}


def _headline(values: Mapping[str, str], is_checked: bool) -> str:
    """What runs with these values, in one line; empty if they are not compared with this machine.

    Raises:
        CoreError: They cannot work together, or not here.
    """
    from torch_hal.plan import VARIABLES, Request, resolve

    unused = {*VARIABLES.values(), "CORE_CONFIG"}
    environ = {name: value for name, value in os.environ.items() if name not in unused}
    request = Request.read(environ={**environ, **_MACHINES}, cluster_environment="local", **values)
    return resolve(request).headline if is_checked else ""


def _ask(is_checked: bool) -> dict[str, str]:
    """The user's answers, each asked for until it works with those before it.

    Raises:
        EOFError: There are no more answers.
        CoreError: ``CORE_PLUGINS`` is malformed.
    """
    from torch_hal.registration import REGISTRIES

    answers: dict[str, str] = {}
    sys.stdout.write("An empty answer takes the value in brackets; auto leaves the choice to each run.\n")
    for name, meaning in settings().items():
        installed = f" ({', '.join(REGISTRIES[name].available())})" if name in KINDS else ""
        text = textwrap.fill(f"{name}: {meaning}{installed}", width_of(sys.stdout, os.environ), break_on_hyphens=False)
        sys.stdout.write(f"\n{text}\n")
        while name not in answers:
            given = {**answers, name: input(f"{name} [auto]: ").strip() or "auto"}
            try:
                _headline(given, is_checked)
            except CoreError as error:
                sys.stdout.write(f"{error}\n")
            else:
                answers = given
    return answers


def _toml(values: Mapping[str, str]) -> str:
    """The file. Numbers are written as numbers, and what is ``auto`` is left out."""
    lines = ["# Settings of torch-hal: torch-hal run --config, or CORE_CONFIG. What is left out is chosen by each run."]
    for name, text in values.items():
        if text != "auto":
            is_number = name in _OTHERS and text.isascii() and text.removeprefix("-").isdecimal()
            lines.append(f"{name} = {int(text) if is_number else json.dumps(text, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None, program: str = "python -m torch_hal_tools.settings_file") -> int:
    """Write the file; returns the exit code: 0, 130 after Ctrl-C, or 2 if nothing is written.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Write a file with the settings of a run, which torch-hal run, torch-hal explain, Trainer and "
        "Runtime read. Without settings it asks for them. An argument of the script and an environment variable "
        "overrule the file.",
        epilog=f"examples:\n  {program}\n  {program} --devices 2 --precision bf16",
    )
    for name, meaning in settings().items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="N" if name in _OTHERS else "NAME", help=meaning)
    parser.add_argument("--output", metavar="FILE", default="torch-hal.toml", help="the file (default: torch-hal.toml)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--no-check", action="store_true", help="for another machine: compare nothing with this one")
    options = vars(parser.read(arguments))
    path = Path(options["output"])
    if path.is_dir() or not path.parent.is_dir():
        parser.error(f"argument --output: {str(path)!r} is not a file in a folder that is there")
    if path.exists() and not options["force"]:
        parser.error(f"argument --output: {str(path)!r} is there. Add --force to replace it, or give another name")
    try:
        given = {name: options[name] for name in settings() if options[name] is not None}
        values = given or _ask(not options["no_check"])
        headline = _headline(values, not options["no_check"])
        path.write_text(_toml(values), "utf-8")
    except EOFError:
        sys.stderr.write(f"\n{program}: end of input; nothing is written\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{program}: interrupted; nothing is written\n")
        return 130
    except (CoreError, OSError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    name = shlex.quote(str(path))
    meeting = "" if values.get("num_nodes", "auto") in ("auto", "1") else "--rdzv-endpoint HOST:PORT "
    sys.stdout.write(f"{name}{f': {headline}' if headline else ''}\n")
    sys.stdout.write(f"Use it: torch-hal run --config {name} {meeting}train.py\n")
    sys.stdout.write(f"or:     CORE_CONFIG={name} python train.py\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
