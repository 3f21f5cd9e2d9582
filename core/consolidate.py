"""``torch-hal consolidate DIR [FILE]``, also ``python -m core.consolidate``: a checkpoint directory as one file.

Every tensor in the file is whole. Any number of processes may have written the directory; none needs to run.
``torch.load(FILE)`` reads the file, which is a checkpoint too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .commands.verb_parser import VerbParser
from .errors import CheckpointError, CoreError
from .hints.argument_checks import is_url

__all__ = ["consolidate", "main"]


def consolidate(directory: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> str:
    """Write the checkpoint in ``directory`` as one file. The file is complete or does not exist.

    Args:
        directory: A checkpoint that the CheckpointIO ``sharded``, ``safetensors`` or ``torch`` wrote.
        file: The file to write; the directory's path with ``.pt`` appended by default.

    Returns:
        The path of the file.

    Raises:
        CheckpointError: The checkpoint is missing, uncommitted or damaged, or ``file`` already exists or cannot be
            written.
    """
    from .checkpoints import TorchCheckpointIO, store_of
    from .checkpoints.foreign import load_whole

    given = os.fspath(directory)
    target = os.fspath(file or (f"{given.rstrip('/')}.pt" if is_url(given) else f"{os.path.normpath(given)}.pt"))
    if store_of(target).exists():
        raise CheckpointError(f"file={target!r} already exists. Choose another path, or remove the file first.")
    TorchCheckpointIO().save_checkpoint(load_whole(directory), target)
    return target


def main(arguments: Sequence[str] | None = None, program: str = "python -m core.consolidate") -> int:
    """Write the file and print its path; returns the exit code: 0, or 2 if the file cannot be written.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Write a checkpoint directory as one file, which torch.load reads.",
        epilog=f"example: {program} core_logs/version_0/checkpoints/last.ckpt last.pt",
    )
    parser.add_argument("directory", metavar="DIR", help="the checkpoint directory")
    parser.add_argument("file", metavar="FILE", nargs="?", help="the file to write (default: DIR.pt)")
    options = parser.read(arguments)
    try:
        target = consolidate(options.directory, options.file)
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
