"""``torch-hal checkpoints [DIR]``: the checkpoints in a directory, and whether each is whole."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import attrs

from ..checkpoints.commit import RESERVED
from ..checkpoints.locations import store_of
from ..checkpoints.manifest import FILE_NAME, DamagedError, Manifest, NotOursError
from ..errors import CheckpointError, CoreError, harmless
from ..hints.argument_checks import is_url
from .terminal import Style, is_terminal, table, width_of
from .verb_parser import VerbParser

_MOST_METRICS = 3
"""How many metrics a line shows; ``--json`` has all."""


@attrs.frozen
class Found:
    """A checkpoint that was found."""

    path: str
    manifest: Manifest | None
    """``None`` if it cannot be read."""
    problem: str = ""
    """Why it cannot be loaded; empty if it can."""
    state: str = "whole"
    """``whole``, ``damaged``, or ``unreadable`` here, such as in a newer format."""


def find_all(directory: str, verify: bool = False) -> list[Found]:
    """The checkpoints in ``directory`` and in the directories below it, the oldest first.

    Files and directories that are no checkpoints, and have no manifest, are not among them.

    Args:
        directory: A path, or a URL, of which only the checkpoints in the folder itself are looked at.
        verify: Read every file and compare its checksum; otherwise only sizes are compared.

    Raises:
        CheckpointError: ``directory`` does not exist or cannot be read.
    """
    found = (_look_at(path, verify) for path in _paths(directory))
    return sorted((each for each in found if each is not None), key=_order)


def _order(found: Found) -> tuple[str, int, str]:
    return os.path.dirname(found.path), -1 if found.manifest is None else found.manifest.sequence, found.path


def _paths(directory: str) -> Iterator[str]:
    """The paths at which there may be a checkpoint."""
    if is_url(directory):
        yield from (f"{directory.rstrip('/')}/{name}" for name in store_of(directory).names())
        return
    if not os.path.isdir(directory):
        raise CheckpointError(f"{directory!r} is not a directory. Give the directory of a run, or of its checkpoints.")
    for folder, folders, files in os.walk(directory):
        if FILE_NAME in files:
            folders.clear()  # the parts of a checkpoint are not checkpoints
            yield folder
        else:
            paths = (os.path.join(folder, name) for name in sorted(files))
            yield from (path for path in paths if not os.path.islink(path))
        folders[:] = sorted(name for name in folders if not name.startswith(RESERVED))


def _look_at(path: str, verify: bool) -> Found | None:
    store = store_of(path)
    try:
        manifest = store.manifest()
    except CheckpointError as error:
        if type(error) in (CheckpointError, NotOursError):
            return None  # gone meanwhile, or what another program calls a manifest
        return Found(path, None, str(error), _state(error))
    try:
        if verify:
            with store.local_copy() as local:
                manifest.verify(local)
    except CheckpointError as error:
        return Found(path, manifest, str(error), _state(error))
    return Found(path, manifest)


def _state(error: CheckpointError) -> str:
    return "damaged" if isinstance(error, DamagedError) else "unreadable"


def main(arguments: Sequence[str] | None = None, program: str = "torch-hal checkpoints") -> int:
    """Print the checkpoints; returns the exit code: 0, 1 if one is not whole, or 2 if the directory cannot be read.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Show the checkpoints in a directory and below it: step, time, size, newest metrics, and whether "
        "each is whole. Exits with 1 if one is not.",
        epilog=f"example: {program} core_logs --verify",
    )
    parser.add_argument("directory", metavar="DIR", nargs="?", default=".", help="where to look (default: here)")
    parser.add_argument("--verify", action="store_true", help="read every file and compare its checksum")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.read(arguments)
    try:
        found = find_all(options.directory, options.verify)
    except CoreError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps([_facts(each) for each in found], indent=2) + "\n")
    else:
        sys.stdout.write(_text(found, options.directory))
    return 0 if all(each.state == "whole" for each in found) else 1


def _facts(found: Found) -> dict[str, Any]:
    manifest = found.manifest
    facts = {} if manifest is None else attrs.asdict(manifest)
    return {"path": found.path, "state": found.state, "problem": found.problem or None, **facts}


def _text(found: Sequence[Found], directory: str) -> str:
    if not found:
        return f"No checkpoints in {directory}.\n"
    titles = ["CHECKPOINT", "EPOCH", "STEP", "SAVED", "SIZE", "PROCESSES", "METRICS", "STATE"]
    rows = [
        (
            [harmless(cell, keep="") for cell in _cells(each, directory)],
            [f"    {harmless(each.problem)}"] if each.problem else [],
        )
        for each in found
    ]
    if is_terminal(sys.stdout, os.environ):
        return table(titles, rows, Style(os.environ), width_of(sys.stdout, os.environ)) + "\n"
    heading, _, *lines = table(titles, rows, Style({"NO_COLOR": "1"}), sys.maxsize).splitlines()
    return "\n".join([heading, *lines]) + "\n"


def _cells(found: Found, directory: str) -> list[str]:
    name = found.path.removeprefix(directory.rstrip("/") + "/")
    manifest = found.manifest
    if manifest is None:
        return [name, "", "", "", "", "", "", found.state]
    saved = datetime.fromisoformat(manifest.saved_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    metrics = [f"{key}={value:.4g}" for key, value in list(manifest.metrics.items())[:_MOST_METRICS]]
    size = sum(record.size for record in manifest.files.values())
    epoch, step = ("" if number is None else str(number) for number in (manifest.epoch, manifest.step))
    processes = "" if manifest.world_size is None else f"{manifest.world_size} {manifest.strategy or ''}".rstrip()
    return [name, epoch, step, saved, _size(size), processes, " ".join(metrics), found.state]


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
