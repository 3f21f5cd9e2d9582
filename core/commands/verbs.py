"""Verbs of ``torch-hal``: core's own, and those of installed packages by entry point in the group ``core.commands``.

The entry point's key is the verb, its value ``package.module:function``: the function takes the arguments and the
program's name, and returns the exit code. Only the verb that is asked for is imported.
"""

from __future__ import annotations

import importlib
import os
import sys

from ..discovery.loading import import_target
from ..discovery.selection import survey
from ..errors import BackendError, CoreError, UnknownNameError
from ..kinds import COMMAND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..discovery.scan import Row

__all__ = ["VERBS", "available_verbs", "load_verb", "run_verb"]

# A table, not entry points: so doctor also runs where metadata is damaged, and no verb costs a second scan.
VERBS = {
    "list": ("torch_hal.list", "show the installed backends and the state of each"),
    "run": ("torch_hal.run.__main__", "run a script on several processes, with any backend"),
    "explain": ("torch_hal.explain", "show what would run for given arguments, and why"),
    "doctor": ("torch_hal.doctor.__main__", "one page for a bug report: what is here, what is wrong"),
    "checkpoints": ("torch_hal.commands.checkpoints", "show the checkpoints in a directory, and which are whole"),
    "convert": ("torch_hal.convert", "write a checkpoint as one file, also those of other libraries"),
    "completion": ("torch_hal.commands.completion", "write the completion of these commands for a shell"),
}
"""core's own verbs: the module of each, and what it does. An installed package cannot replace one."""


def available_verbs(environ: Mapping[str, str]) -> dict[str, str]:
    """The verbs that can be used here, with what each does: core's own, then those of installed packages.

    Args:
        environ: The environment variables; ``CORE_PLUGINS`` can deny the verbs of a package.

    Raises:
        ConfigurationError: ``CORE_PLUGINS`` is malformed.
    """
    rows = [row for row in survey(environ).commands if row.state == "installed" and row.name not in VERBS]
    return {verb: purpose for verb, (_, purpose) in VERBS.items()} | {row.name: _purpose(row) for row in rows}


def load_verb(verb: str, environ: Mapping[str, str]) -> Callable[[Sequence[str] | None, str], int]:
    """The function that runs a verb, given its arguments and how the user called it.

    Raises:
        BackendError: The package of the verb is not installed, denied, incompatible, in conflict or broken.
        ConfigurationError: ``CORE_PLUGINS`` is malformed.
        UnknownNameError: There is no such verb.
    """
    if verb in VERBS:
        function: Callable[[Sequence[str] | None, str], int] = importlib.import_module(VERBS[verb][0]).main
        return function
    rows = [row for row in survey(environ).commands if row.name == verb]
    usable = next((row for row in rows if row.state == "installed"), None)
    if usable is None:
        if rows:
            raise BackendError(f"{rows[0].origin} is {rows[0].state}: {rows[0].reason}.")
        from ..hints.remedies import package, providers  # imports functools, which other verbs do not need

        if absent := providers(COMMAND, verb):
            raise BackendError(f"{absent[0]} is not installed. Run: pip install {package(absent[0])}")
        raise UnknownNameError(f"unknown verb {verb!r}.")
    try:
        function = import_target(usable.module)
    except BackendError as error:
        raise BackendError(f"{usable.origin} is broken: {error}") from error.__cause__
    return function


def run_verb(verb: str, arguments: Sequence[str] | None, program: str) -> int:
    """Run a verb; returns its exit code, or 2 if it cannot be loaded, for ``python -m core.<verb>``.

    Args:
        verb: The verb.
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called the verb, for messages.
    """
    try:
        function = load_verb(verb, os.environ)
    except CoreError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    return function(arguments, program)


def _purpose(row: Row) -> str:
    """The description of a package's verb: the first line of its module after the colon, read without importing it."""
    import ast
    from importlib.machinery import PathFinder, SourceFileLoader

    module, parts, path = "", row.module.partition(":")[0].split("."), None
    for part in parts:
        module = f"{module}.{part}".removeprefix(".")
        spec = PathFinder.find_spec(module, path)
        path = None if spec is None else spec.submodule_search_locations
    loader = None if spec is None else spec.loader
    source = loader.get_source(module) if isinstance(loader, SourceFileLoader) else None
    docstring = ast.get_docstring(ast.parse(source or "")) or ""
    return docstring.partition("\n")[0].rpartition(": ")[2].rstrip(".") or f"a verb of {row.origin}"
