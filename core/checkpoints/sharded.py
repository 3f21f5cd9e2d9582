"""The CheckpointIO for tensors sharded over processes: each process writes and reads its own shards."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import CheckpointError, CoreError, WrongTypeError
from ..utilities.nested import map_tensors
from ..utilities.torch_private import load_in_this_process, local_shape_and_offset
from .agreement import gather_over, run_on_each_rank, run_on_rank_zero
from .base import CheckpointIO, check_arguments
from .checksums import read_while_verifying
from .commit import write_errors
from .locations import naming_the_newest_whole, store_of
from .manifest import SHARD, FileRecord, Manifest
from .safe_unpickling import refuse_unreadable
from .torch_io import read_file, read_shard, write_shard

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

Place = tuple[Any, ...]

_NAME = "sharded"


class ShardedCheckpointIO(CheckpointIO):
    """A directory with the shards of every process and a manifest, committed by one rename.

    Each process writes its shards of sharded tensors (:class:`torch.distributed.tensor.DTensor`) in the format of
    :mod:`torch.distributed.checkpoint`, named by their keys in the checkpoint joined by dots. Process 0 writes
    everything else. All processes must see the directory.

    Any number of processes can read the checkpoint, also without a process group. It also reads the files of
    :class:`core.checkpoints.TorchCheckpointIO`.
    """

    is_collective = True

    def __init__(self) -> None:
        # Imported before there is a process group: functions in it take the current group as a default argument, and
        # would keep it alive as long as the process lives.
        import torch.distributed.checkpoint  # noqa: F401

        self.group: dist.ProcessGroup | None = None
        """The processes that save together, as a group with a CPU backend; by default all of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "group": None}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """See the base class. Every process calls it; it returns or raises when all processes have finished.

        Raises:
            CheckpointError: The checkpoint cannot be written, or holds a value that could not be read back.
            ConfigurationError: ``storage_options`` is not ``None``.
            WrongTypeError: ``checkpoint`` is not a dict, or ``path`` is not a path.
        """
        check_arguments(type(self).__name__, checkpoint, storage_options)
        shards: dict[Place, Tensor] = {}
        content = _without_shards(checkpoint, (), shards)
        keys = _keys(shards)
        parts, whole = {keys[place]: shards[place] for place in shards}, {"content": content, "places": keys}
        group, gather = self.group, gather_over(self.group)
        # Rank 0 alone writes it; an error comes before anything is written.
        run_on_rank_zero(lambda: refuse_unreadable(content), gather)
        with store_of(path).committed_together(gather) as staged:
            written = run_on_each_rank(lambda: _write_shards(parts, staged, path, group), gather)
            run_on_rank_zero(lambda: _finish(staged, path, whole, checkpoint, written), gather)

    def check_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """See the base class."""
        check_arguments(type(self).__name__, checkpoint, storage_options)
        refuse_unreadable(_without_shards(checkpoint, (), {}))
        store_of(path)

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
        """Like the base class, with full tensors.

        Args:
            path: The checkpoint.
            map_location: The device of the tensors, or its name; ``None`` for the CPU.
        """
        if map_location is not None and not isinstance(map_location, str | torch.device):
            raise WrongTypeError(
                f"map_location={map_location!r} must be a device, its name or None, not {type(map_location).__name__}."
            )

        def whole(size: torch.Size, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype)

        def read(place: Path) -> dict[str, Any]:
            manifest = Manifest.read(place)
            return read_while_verifying(
                lambda stop: manifest.verify(place, stop=stop), lambda: _read(place, manifest, whole)
            )

        with naming_the_newest_whole(path):
            loaded = store_of(path).read(read)
        if map_location is None:
            return loaded
        moved: dict[str, Any] = map_tensors(lambda tensor: tensor.to(map_location), loaded)
        return moved

    def load_shards(
        self, path: str | os.PathLike[str], mesh: DeviceMesh, placements: Sequence[Placement]
    ) -> dict[str, Any]:
        """Read this process's shards of the checkpoint at ``path``; every process of the default group calls it.

        Args:
            path: The checkpoint.
            mesh: The processes over which sharded tensors are sharded again.
            placements: For each dimension of ``mesh``, ``Shard`` or ``Replicate``.

        Returns:
            The checkpoint. Tensors that were sharded are DTensors with their shards on the CPU.

        Raises:
            CheckpointError: It is absent, uncommitted or damaged; raised in every process.
        """
        from torch.distributed.tensor import DTensor

        def divided(size: torch.Size, dtype: torch.dtype) -> Tensor:
            shape, _ = local_shape_and_offset(size, mesh, placements)
            stride = torch.empty(size, device="meta").stride()
            part = torch.empty(shape, dtype=dtype)
            return DTensor.from_local(part, mesh, placements, run_check=False, shape=size, stride=stride)

        def verify(place: Path) -> None:
            manifest = Manifest.read(place)
            manifest.verify(place, _share(manifest))

        with naming_the_newest_whole(path):
            return store_of(path).read_together(verify, lambda place: _read(place, Manifest.read(place), divided))


# -- taking a checkpoint apart ---------------------------------------------------------------------------------------


def _without_shards(value: Any, place: Place, shards: dict[Place, Tensor]) -> Any:
    """``value`` with ``None`` in place of each sharded tensor, which is put into ``shards`` under its place."""
    if _is_divided(value):
        shards[place] = value.detach()
        return None
    if isinstance(value, dict):
        items = {key: _without_shards(item, (*place, key), shards) for key, item in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        replaced = copy.copy(value)  # with its attributes, such as the metadata of a module's state
        replaced.update(items)
        return replaced
    if isinstance(value, list | tuple):
        found = len(shards)
        parts = [_without_shards(item, (*place, index), shards) for index, item in enumerate(value)]
        if len(shards) == found:
            return value
        if isinstance(value, tuple):
            raise CheckpointError(f"checkpoint: {_key(place)!r} is a tuple of sharded tensors. Use a list instead.")
        return parts
    return value


def _is_divided(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "device_mesh")


def _key(place: Place) -> str:
    return ".".join(str(part) for part in place)


def _keys(shards: Mapping[Place, Tensor]) -> dict[Place, str]:
    """A unique name for each place, the same in every process."""
    keys: dict[Place, str] = {}
    for place in shards:
        key = _key(place)
        while key in keys.values():
            key += "'"
        keys[place] = key
    return keys


def _put(content: Any, place: Place, tensor: Tensor) -> None:
    for part in place[:-1]:
        content = content[part]
    content[place[-1]] = tensor


# -- files -----------------------------------------------------------------------------------------------------------


def _write_shards(
    shards: dict[str, Tensor], staged: Path, path: str | os.PathLike[str], group: dist.ProcessGroup | None
) -> dict[str, FileRecord]:
    if not shards:
        return {}
    from .shard_files import write_shards

    return write_shards(shards, staged, path, group)


def _finish(
    staged: Path,
    path: str | os.PathLike[str],
    whole: dict[str, Any],
    checkpoint: dict[str, Any],
    written: list[dict[str, FileRecord]],
) -> None:
    with write_errors(path):
        files = {SHARD: write_shard(whole, staged / SHARD, path)}
        for records in written:
            files.update(records)
        Manifest.describe(checkpoint.get("core"), files, _NAME).write(staged)


def _share(manifest: Manifest) -> list[str]:
    """The files that this process verifies."""
    return sorted(manifest.files)[dist.get_rank() :: dist.get_world_size()]


def _read(directory: Path, manifest: Manifest, target: Callable[[torch.Size, torch.dtype], Tensor]) -> dict[str, Any]:
    """The checkpoint in ``directory``; ``target`` makes the tensor that each sharded tensor is read into.

    Of another CheckpointIO, only a checkpoint of one file is read.
    """
    if manifest.checkpoint_io != _NAME:
        return read_file(directory, manifest, "cpu")
    manifest.check_written_by(_NAME, SHARD, directory)
    whole = read_shard(directory, "cpu")
    try:
        checkpoint: dict[str, Any] = whole["content"]
        places = dict(whole["places"])
        tensors = _read_shards(directory, manifest, set(places.values()), target) if places else {}
        for place, key in places.items():
            _put(checkpoint, place, tensors[key])
    except CoreError:
        raise
    except Exception as error:  # whatever is wrong with the places
        raise CheckpointError(f"{directory / SHARD} is damaged: {type(error).__name__}: {error}") from error
    return checkpoint


def _read_shards(
    directory: Path, manifest: Manifest, keys: Any, target: Callable[[torch.Size, torch.dtype], Tensor]
) -> dict[str, Tensor]:
    from .shard_files import read_facts

    content = read_facts(directory, manifest)
    missing = sorted(key for key in keys if key not in content.state_dict_metadata)
    if missing:
        raise CheckpointError(f"{directory} is damaged: its shards have no tensor {missing[0]!r}.")
    return read_tensors(directory, content, keys, target)


def read_tensors(
    directory: Path, content: Metadata, keys: Iterable[str], target: Callable[[torch.Size, torch.dtype], Tensor]
) -> dict[str, Tensor]:
    """The tensors ``keys`` of shards.

    Args:
        directory: Where they are.
        content: What :func:`~core.checkpoints.shard_files.read_facts` returned.
        keys: Their names in it.
        target: Makes the tensor that each is read into.

    Raises:
        CheckpointError: They cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    from .shard_files import ShardPlanner, ShardReader

    try:
        tensors = {}
        for key in keys:
            fact: Any = content.state_dict_metadata[key]
            tensors[key] = target(fact.size, fact.properties.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "torch.distributed is disabled", UserWarning
            )  # each process reads by itself
            load_in_this_process(tensors, storage_reader=ShardReader(directory, content), planner=ShardPlanner())
    except (Exception, CheckpointException) as error:
        failures = error.failures.values() if isinstance(error, CheckpointException) else ()
        cause = next((failure for failure, _ in failures), error)  # torch adds a traceback to the message
        if isinstance(cause, CoreError):
            raise cause from None
        raise CheckpointError(f"{directory} cannot be loaded: {type(cause).__name__}: {cause}") from error
    return tensors
