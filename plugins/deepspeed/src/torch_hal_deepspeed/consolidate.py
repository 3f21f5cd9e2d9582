"""``python -m torch_hal_deepspeed.consolidate DIR [FILE]``: the weights of a checkpoint as one file in float32.

Any number of processes may have written the directory; none needs to run. ``torch.load(FILE)`` reads the file: the
module's state, by the user's own names.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from core.errors import CheckpointError, CoreError, quoted

__all__ = ["consolidate", "main"]


def consolidate(
    directory: str | os.PathLike[str], file: str | os.PathLike[str] | None = None, part: str | None = None
) -> str:
    """Write the weights of the checkpoint in ``directory`` as one file, committed or not written at all.

    Args:
        directory: A checkpoint that strategy ``deepspeed`` wrote.
        file: Where to; beside the directory, under its name with ``.pt``, unless given.
        part: Under which name the checkpoint has the module; found by itself where there is one: ``state_dict`` of a
            Trainer's, and whatever ``runtime.save`` was told.

    Returns:
        The file.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged or has no such part, or ``file`` is there or
            cannot be written.
    """
    import torch

    from core.checkpoints import committed_file
    from torch_hal_deepspeed.checkpoints import read_checkpoint
    from torch_hal_deepspeed.library import import_deepspeed

    target = os.fspath(file) if file is not None else f"{os.path.normpath(os.fspath(directory))}.pt"
    if os.path.lexists(target):
        raise CheckpointError(f"file={target!r}: it is there already. Valid: a path where nothing is.")
    import_deepspeed("cpu")
    saved = _find_part(read_checkpoint(directory, "cpu"), part, directory)
    with committed_file(target) as staged:
        torch.save(saved.weights(), staged)
    return target


def _find_part(checkpoint: dict[str, Any], part: str | None, directory: str | os.PathLike[str]) -> Any:
    from torch_hal_deepspeed.checkpoints import SavedEngine

    found = {name: value for name, value in checkpoint.items() if isinstance(value, SavedEngine) and value.is_module}
    names = list(found) if part is None else [name for name in found if name == part]
    if len(names) != 1:
        raise CheckpointError(
            f"part={part!r}: modules that DeepSpeed's engine wrote into {os.fspath(directory)!r}: {quoted(found)}. "
            "Valid: the name of one of them; none need be named where there is one."
        )
    return found[names[0]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and name it; 0, or 2 with the error where it cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m torch_hal_deepspeed.consolidate", description=__doc__)
    parser.add_argument("directory", metavar="DIR", help="the checkpoint's directory")
    parser.add_argument("file", metavar="FILE", nargs="?", help="where to (default: DIR.pt)")
    parser.add_argument("--part", help="the module's name in the checkpoint, where it has several")
    words = parser.parse_args(arguments)
    try:
        target = consolidate(words.directory, words.file, words.part)
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
