"""``python -m torch_hal_deepspeed.consolidate DIR [FILE]``: the weights of a checkpoint as one file in float32.

Any number of processes may have written the directory. ``torch.load(FILE)`` reads the file: the module's state dict.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from torch_hal.errors import CheckpointError, CoreError, quoted

__all__ = ["consolidate", "main"]


def consolidate(
    directory: str | os.PathLike[str], file: str | os.PathLike[str] | None = None, part: str | None = None
) -> str:
    """Write the weights of the checkpoint in ``directory`` as one file, completely or not at all.

    Args:
        directory: A checkpoint that strategy ``deepspeed`` wrote.
        file: The file to write; by default the directory's path with ``.pt``.
        part: The module's key in the checkpoint: ``state_dict`` for a Trainer's checkpoint, otherwise the key that
            ``runtime.save`` was given. Found automatically if there is only one module.

    Returns:
        The path of the file.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged or has no such part, or ``file`` exists or
            cannot be written.
    """
    import torch

    from torch_hal.checkpoints import committed_file
    from torch_hal_deepspeed.checkpoints import read_checkpoint
    from torch_hal_deepspeed.library import import_deepspeed

    target = os.fspath(file) if file is not None else f"{os.path.normpath(os.fspath(directory))}.pt"
    if os.path.lexists(target):
        raise CheckpointError(f"file={target!r} already exists. Choose another path, or remove the file first.")
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
            f"part={part!r} does not select one of the modules that DeepSpeed's engine wrote into "
            f"{os.fspath(directory)!r}. Valid: {quoted(found)}."
        )
    return found[names[0]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and print its path; returns 0, or 2 after printing an error."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_hal_deepspeed.consolidate", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("directory", metavar="DIR", help="the checkpoint's directory")
    parser.add_argument("file", metavar="FILE", nargs="?", help="the file to write (default: DIR.pt)")
    parser.add_argument("--part", help="the module's name in the checkpoint, if it has several")
    options = parser.parse_args(arguments)
    try:
        target = consolidate(options.directory, options.file, options.part)
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
