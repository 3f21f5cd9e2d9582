"""``python -m core``, installed as the command ``torch-hal``: one verb for each thing that can be done from a shell.

Each verb is a module with a function ``main``, so ``torch-hal list`` and ``python -m core.list`` are the same. Packages
add verbs by entry point: see :mod:`core.commands.verbs`.
"""

from __future__ import annotations

import os
import sys

from .commands.terminal import width_of
from .commands.verbs import VERBS, available_verbs, load_verb
from .errors import LONGEST_NAME, CoreError, UnknownNameError, harmless, nearest, quoted
from .hints.remedies import remedies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["main"]

_USAGE = """\
usage: {program} VERB [ARGUMENT ...]

{verbs}

{program} VERB --help shows the arguments of VERB, with an example.
{program} --version shows the versions, also of plugins and torch.
"""


def _remedy(verb: str, rest: Sequence[str], program: str, verbs: Mapping[str, str]) -> str:
    """What to write instead of an unknown verb, which ``rest`` follows."""
    if verb.startswith("-"):
        if near := nearest(verb, ("--help", "--version"), cutoff=0.8):
            return near
        return f" The verb comes first, as in {program} run {verb}."
    if verb.endswith(".py"):
        return f" To run a script: {program} run {verb}."
    if verb in ("install", "add"):
        return f" Install a plugin with pip, as in pip install torch-hal-{(*rest, 'PLUGIN')[0]}."
    instead = remedies("verbs").get(verb.replace("_", "-").lower())
    return f" Did you mean {instead!r}?" if instead else nearest(verb, verbs)


def _usage(program: str) -> str:
    """The verbs and what each is for, for the width of the terminal."""
    import textwrap

    note = ""
    try:
        known = available_verbs(os.environ)
    except CoreError as error:
        known = {verb: purpose for verb, (_, purpose) in VERBS.items()}
        note = f"\n\nVerbs of installed packages are not shown: {error}"
    width, indent = width_of(sys.stdout, os.environ), max(map(len, known)) + 4
    lines = (harmless(f"  {verb:<{indent - 2}}{purpose}", keep="") for verb, purpose in known.items())
    shown = "\n".join(textwrap.fill(line, width, subsequent_indent=" " * indent) for line in lines)
    before, after = _USAGE.split("{verbs}")
    rest = "\n".join(textwrap.fill(line, width) for line in (after.format(program=program) + note).split("\n"))
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
    try:
        function = load_verb(verb, os.environ)
    except UnknownNameError as error:
        verbs = available_verbs(os.environ)
        sys.stderr.write(f"{program}: {error}{_remedy(verb, rest, program, verbs)} Valid: {quoted(verbs)}.\n")
        return 2
    except CoreError as error:
        sys.stderr.write(f"{program} {verb}: {error}\n")
        return 2
    return function(rest, f"{program} {verb}")


if __name__ == "__main__":
    sys.exit(main())
