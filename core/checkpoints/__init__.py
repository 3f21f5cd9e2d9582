"""CheckpointIO: how a checkpoint's bytes are written, read and removed.

A checkpoint is a directory of shards with a manifest, or a single file where a subclass writes one; either way it is
committed by one rename, or absent.
"""

from core.checkpoints.base import CheckpointIO
from core.checkpoints.commit import committed_directory, committed_file, locate, remove_committed
from core.checkpoints.find import is_committed, latest, read_manifest
from core.checkpoints.manifest import FileRecord, Manifest
from core.checkpoints.sharded import ShardedCheckpointIO
from core.checkpoints.torch_io import TorchCheckpointIO

__all__ = [
    "CheckpointIO",
    "FileRecord",
    "Manifest",
    "ShardedCheckpointIO",
    "TorchCheckpointIO",
    "committed_directory",
    "committed_file",
    "is_committed",
    "latest",
    "locate",
    "read_manifest",
    "remove_committed",
]
