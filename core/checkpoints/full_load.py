"""Reading a checkpoint with whole tensors, whichever of core's formats it has."""

from __future__ import annotations

import os
from typing import Any

from ..errors import CheckpointError
from .find import read_manifest
from .safetensors_io import SafetensorsCheckpointIO
from .sharded import ShardedCheckpointIO

__all__ = ["load_whole"]


def load_whole(path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
    """The checkpoint at a path or URL, which any CheckpointIO of core has written.

    Args:
        path: Its file or directory.
        map_location: The device of its tensors; the CPU by default.

    Raises:
        CheckpointError: It is missing, uncommitted or damaged, or a plugin's CheckpointIO has written it.
        ConfigurationError: It has safetensors' format, and that package is not installed.
    """
    try:
        written_by = read_manifest(path).checkpoint_io
    except CheckpointError:
        written_by = ""  # reading it says more
    if written_by == "safetensors":
        return SafetensorsCheckpointIO().load_checkpoint(path, map_location)
    return ShardedCheckpointIO().load_checkpoint(path, map_location)
