"""CheckpointIO: how a checkpoint's bytes are written, read and removed.

A checkpoint is a file with a manifest at its end, a directory of shards with a manifest, or what a subclass writes. One
rename commits it; otherwise it is absent.
"""

from .agreement import check_shared, run_on_each_rank, run_on_rank_zero
from .asynchronous import AsyncCheckpointIO
from .base import CheckpointIO, check_arguments
from .commit import locate
from .directories import unlisted_files
from .locations import (
    absolute,
    committed_directory,
    committed_file,
    is_committed,
    is_in,
    latest,
    local_copy,
    parent,
    read_manifest,
    remove_committed,
    store_of,
)
from .manifest import SHARD, FileRecord, Manifest
from .safe_unpickling import refuse_code, refuse_unreadable
from .safetensors_io import SafetensorsCheckpointIO
from .sharded import ShardedCheckpointIO
from .torch_io import TorchCheckpointIO, read_shard, write_shard

__all__ = [
    "SHARD",
    "AsyncCheckpointIO",
    "CheckpointIO",
    "FileRecord",
    "Manifest",
    "SafetensorsCheckpointIO",
    "ShardedCheckpointIO",
    "TorchCheckpointIO",
    "absolute",
    "check_arguments",
    "check_shared",
    "committed_directory",
    "committed_file",
    "is_committed",
    "is_in",
    "latest",
    "local_copy",
    "locate",
    "parent",
    "read_manifest",
    "read_shard",
    "refuse_code",
    "refuse_unreadable",
    "remove_committed",
    "run_on_each_rank",
    "run_on_rank_zero",
    "store_of",
    "unlisted_files",
    "write_shard",
]
