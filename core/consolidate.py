"""``python -m core.consolidate DIR [FILE]``: one file of a checkpoint's directory, every tensor in it whole.

Any number of processes may have written the directory; none needs to run. ``torch.load(FILE)`` reads the file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from core.errors import CheckpointError, CoreError

__all__ = ["consolidate", "main"]


def consolidate(directory: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> str:
    """Write the checkpoint in ``directory`` as one file, committed or not written at all.

    Args:
        directory: A checkpoint that the CheckpointIO ``sharded`` or ``torch`` wrote.
        file: Where to; beside the directory, under its name with ``.pt``, unless given.

    Returns:
        The file.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted or damaged, or ``file`` is there or cannot be written.
    """
    import torch

    from core.checkpoints import ShardedCheckpointIO, committed_file

    target = os.fspath(file) if file is not None else f"{os.path.normpath(os.fspath(directory))}.pt"
    if os.path.lexists(target):
        raise CheckpointError(f"file={target!r}: it is there already. Valid: a path where nothing is.")
    checkpoint = ShardedCheckpointIO().load_checkpoint(directory)
    with committed_file(target) as staged:
        torch.save(checkpoint, staged)
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and name it; 0, or 2 with the error where it cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m core.consolidate", description=__doc__)
    parser.add_argument("directory", metavar="DIR", help="the checkpoint's directory")
    parser.add_argument("file", metavar="FILE", nargs="?", help="where to (default: DIR.pt)")
    words = parser.parse_args(arguments)
    try:
        target = consolidate(words.directory, words.file)
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
