"""``torch-hal convert PATH [FILE]``, also ``python -m core.convert``: any checkpoint as one file.

It reads a directory of shards, and what Lightning, Accelerate, Transformers and ``torch.distributed.checkpoint`` have
written. Every tensor in the file is whole. Any number of processes may have written the checkpoint; none needs to run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from .commands.verb_parser import VerbParser
from .errors import CheckpointError, CoreError, quoted
from .hints.argument_checks import is_url

__all__ = ["convert", "main", "read_parts", "write_weights"]

_SUFFIX = ".safetensors"


def convert(path: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> str:
    """Write the checkpoint at ``path`` as one file, which is complete or does not exist.

    Args:
        path: A checkpoint that the CheckpointIO ``sharded``, ``safetensors`` or ``torch`` wrote; or a file or directory
            of Lightning, Accelerate, Transformers, ``torch.distributed.checkpoint`` or safetensors.
        file: The file to write; ``path`` with ``.pt`` appended by default. Its suffix is its format: ``.safetensors``
            holds the weights of one module, any other a checkpoint with all parts, as ``torch.load`` reads it.

    Returns:
        The path of the file.

    Raises:
        CheckpointError: The checkpoint is missing, uncommitted or damaged, or has a part that cannot be converted; or
            ``file`` already exists or cannot be written.
    """
    from .checkpoints import TorchCheckpointIO, store_of

    given = os.fspath(path)
    target = os.fspath(file or (f"{given.rstrip('/')}.pt" if is_url(given) else f"{os.path.normpath(given)}.pt"))
    if store_of(target).exists():
        raise CheckpointError(f"file={target!r} already exists. Choose another path, or remove the file first.")
    weights_only = target.endswith(_SUFFIX)
    parts = read_parts(path, weights_only)
    if weights_only:
        write_weights(parts, given, target)
    else:
        TorchCheckpointIO().save_checkpoint(parts, target)
    return target


def read_parts(path: str | os.PathLike[str], weights_only: bool = False) -> dict[str, Any]:
    """Read the parts of the checkpoint at ``path``, by name. Every tensor is whole and on the CPU.

    Args:
        path: As in :func:`convert`.
        weights_only: Whether only the weights are read from a directory of another library. Otherwise a part that
            cannot be read is an error.

    Raises:
        CheckpointError: The checkpoint is missing, uncommitted or damaged, or has a part that cannot be read.
    """
    from .checkpoints.foreign import load_any, load_whole

    return load_any(lambda: load_whole(path), path, weights_only, complete=not weights_only)


def write_weights(parts: dict[str, Any], path: str, file: str | os.PathLike[str]) -> None:
    """Write the weights among ``parts`` to ``file`` in safetensors' format.

    Args:
        parts: Of one checkpoint, as :func:`read_parts` returns them.
        path: Where they were read, for messages.
        file: The file to write; it is complete or does not exist.

    Raises:
        CheckpointError: There are no weights of one module, or ``file`` cannot be written.
    """
    from torch import Tensor

    from .runtime.checkpoint.saving import save_tensors

    def is_state(value: Any) -> bool:
        return isinstance(value, dict) and bool(value) and all(isinstance(each, Tensor) for each in value.values())

    found = [name for name, value in parts.items() if is_state(value)]
    names = [name for name in ("state_dict", "model") if name in found][:1] or found
    if len(names) != 1:
        raise CheckpointError(
            f"{path}: a {_SUFFIX} file holds the weights of one module, and this checkpoint has "
            f"{quoted(names) if names else 'none'}. Give FILE another suffix: then it holds all parts."
        )
    save_tensors(parts[names[0]], file)


def main(arguments: Sequence[str] | None = None, program: str = "python -m core.convert") -> int:
    """Write the file and print its path; returns the exit code: 0, or 2 if the file cannot be written.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Write a checkpoint as one file: a directory of shards, or what Lightning, Accelerate, "
        "Transformers or torch.distributed.checkpoint have written.",
        epilog="examples:\n"
        f"  {program} core_logs/version_0/checkpoints/last.ckpt last.pt\n"
        f"  {program} core_logs/version_0/checkpoints/last.ckpt weights.safetensors",
    )
    parser.add_argument("path", metavar="PATH", help="the checkpoint's file or directory")
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="the file to write; .safetensors for weights (default: PATH.pt)"
    )
    options = parser.read(arguments)
    try:
        target = convert(options.path, options.file)
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
