"""``python -m core``, installed as the command ``torch-hal``: one verb for each thing that can be done from a shell.

Each verb is a module of this package with a function ``main``, so ``torch-hal new-plugin`` and
``python -m core.new_plugin`` are the same.
"""

from __future__ import annotations

import os
import sys

from .commands.terminal import width_of
from .commands.verbs import VERBS
from .errors import LONGEST_NAME, harmless, nearest, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["VERBS", "main"]

_USAGE = """\
usage: {program} VERB [ARGUMENT ...]

{verbs}

{program} VERB --help shows the arguments of VERB, with an example.
{program} --version shows the versions, also of plugins and torch.
"""


_INSTEAD = {
    "config": "explain",
    "convert": "consolidate",
    "create": "new-plugin",
    "env": "doctor",
    "help": "--help",
    "info": "doctor",
    "init": "new-plugin",
    "launch": "run",
    "merge-weights": "consolidate",
    "plan": "explain",
    "plugins": "list",
    "report": "doctor",
    "test": "conformance",
    "version": "--version",
}
"""For what other tools call the same: the verb or option here."""


def _remedy(verb: str, rest: Sequence[str], program: str) -> str:
    """What to write instead of an unknown verb, which ``rest`` follows."""
    if verb.startswith("-"):
        if near := nearest(verb, ("--help", "--version"), cutoff=0.8):
            return near
        return f" The verb comes first, as in {program} run {verb}."
    if verb.endswith(".py"):
        return f" To run a script: {program} run {verb}."
    if verb in ("install", "add"):
        return f" Install a plugin with pip, as in pip install torch-hal-{(*rest, 'PLUGIN')[0]}."
    instead = _INSTEAD.get(verb.replace("_", "-").lower())
    return f" Did you mean {instead!r}?" if instead else nearest(verb, VERBS)


def _usage(program: str) -> str:
    """The verbs and what each is for, for the width of the terminal."""
    import textwrap

    width, indent = width_of(sys.stdout, os.environ), max(map(len, VERBS)) + 4
    verbs = (f"  {name:<{indent - 2}}{purpose}" for name, (_, purpose) in VERBS.items())
    shown = "\n".join(textwrap.fill(line, width, subsequent_indent=" " * indent) for line in verbs)
    before, after = _USAGE.split("{verbs}")
    rest = "\n".join(textwrap.fill(line, width) for line in after.format(program=program).split("\n"))
    return before.format(program=program) + shown + rest


def _versions() -> list[tuple[str, str]]:
    """The versions of torch-hal, of each distribution with a plugin, of torch, and of Python; nothing is imported."""
    import importlib.metadata
    import platform

    from . import __version__
    from .discovery.scan import CORE, scan

    found = {row.distribution: row.version for row in scan() if row.distribution != CORE}
    for distribution in importlib.metadata.distributions():  # some provide no backend, such as other front ends' own
        name = distribution.metadata["Name"] or ""
        if name.startswith("torch-hal-"):
            found[name] = distribution.version
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "is not installed"
    return [("torch-hal", __version__), *sorted(found.items()), ("torch", torch), ("Python", platform.python_version())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns its exit code, 141 if what reads the output ends before, as ``head`` does.

    Args:
        arguments: The command line, without the program's name; this process's own by default.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        return 128 + 13  # as of a program that SIGPIPE has ended


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    program = "python -m core" if os.path.basename(sys.argv[0]) == "__main__.py" else "torch-hal"
    verb, *rest = arguments or ["--help"]
    if verb in ("--help", "-h"):
        sys.stdout.write(_usage(program))
        return 0
    if verb == "--version":
        lines = (harmless(f"{name} {version}", LONGEST_NAME, keep="") for name, version in _versions())
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return 0
    if verb not in VERBS:
        sys.stderr.write(f"{program}: unknown verb {verb!r}.{_remedy(verb, rest, program)} Valid: {quoted(VERBS)}.\n")
        return 2
    import importlib

    code: int = importlib.import_module(VERBS[verb][0]).main(rest, f"{program} {verb}")
    return code


if __name__ == "__main__":
    sys.exit(main())
