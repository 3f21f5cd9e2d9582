"""The parts of a loader: its data set and samplers, their epochs and generators."""

from __future__ import annotations

import json
from multiprocessing.sharedctypes import SynchronizedBase
from random import Random
from typing import Any

from torch import Generator, Tensor
from torch.utils.data import Sampler

from ..errors import ConfigurationError


def loader_parts(loader: Any) -> list[Any]:
    """``loader``, its data set and samplers, and those that they in turn draw from."""
    parts, known = [loader], {id(loader)}
    for part in parts:  # which grows
        for name in ("dataset", "batch_sampler", "sampler"):
            inner = getattr(part, name, None)
            if inner is not None and id(inner) not in known:
                parts.append(inner)
                known.add(id(inner))
    return parts


def generators_of(loader: Any) -> list[Any]:
    """The generators that parts of ``loader`` draw from, other than the global ones, each once.

    They have ``get_state`` and ``set_state``. Those of Python and NumPy count where a sampler keeps one in an
    attribute: a data set may be meant to draw other numbers in each process.
    """
    found: dict[int, Any] = {}
    parts = loader_parts(loader)
    data_sets = [getattr(part, "dataset", None) for part in parts]
    for part in parts:
        held = [getattr(part, "generator", None)]
        if part is not loader and not any(part is data_set for data_set in data_sets):
            held += getattr(part, "__dict__", {}).values()
        for value in held:
            if isinstance(value, Generator):
                found[id(value)] = value
            elif isinstance(value, Random) or hasattr(value, "_bit_generator") or hasattr(value, "bit_generator"):
                found[id(value)] = _HostGenerator(value)
    return list(found.values())


class _HostGenerator:
    """A generator of Python or NumPy with the methods of torch's; its state is text, which checkpoints can hold."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def get_state(self) -> str:
        given = self._given
        if isinstance(given, Random):
            return json.dumps(given.getstate())
        state = given.bit_generator.state if hasattr(given, "bit_generator") else given.get_state(legacy=False)
        return json.dumps(state, default=lambda array: array.tolist())

    def set_state(self, state: str) -> None:
        given, value = self._given, json.loads(state)
        if isinstance(given, Random):
            version, internal, gauss = value
            given.setstate((version, tuple(internal), gauss))
        elif hasattr(given, "bit_generator"):
            given.bit_generator.state = value
        else:
            given.set_state(value)


def set_epoch(loader: Any, epoch: int) -> None:
    """Make the next pass over ``loader``, prepared or not, number ``epoch``."""
    own = getattr(loader, "set_epoch", None)
    if own is not None:
        own(epoch)
        return
    for part in loader_parts(loader):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def keeps_epoch_from_workers(dataset: Any) -> bool:
    """Whether a copy of ``dataset`` in a worker does not hear of its ``set_epoch``.

    It does where the epoch is in shared memory: a tensor, or a ``Value`` of multiprocessing.
    """
    told = [part for part in loader_parts(dataset) if hasattr(part, "set_epoch")]
    return not all(any(_is_shared(value) for value in _epochs(part)) for part in told)


def _epochs(part: Any) -> list[Any]:
    members: dict[str, Any] = getattr(part, "__dict__", {})  # an object with slots has none
    return [value for name, value in members.items() if "epoch" in name]


def _is_shared(value: Any) -> bool:
    return isinstance(value, SynchronizedBase) or (isinstance(value, Tensor) and value.is_shared())  # type: ignore[no-untyped-call]


class Epochs:
    """Tells the parts of a loader which pass comes next.

    A part whose epoch the user sets, as ``sampler.set_epoch(epoch)`` does, is left to the user.
    """

    def __init__(self, loader: Any) -> None:
        self._parts = [part for part in loader_parts(loader) if hasattr(part, "set_epoch")]
        self._known = [getattr(part, "epoch", None) for part in self._parts]

    def tell(self, epoch: int, explicit: bool) -> None:
        """Set the epoch of each part; with ``explicit``, of those too that the user has set."""
        for position, part in enumerate(self._parts):
            if explicit or getattr(part, "epoch", None) == self._known[position]:
                part.set_epoch(epoch)
                self._known[position] = getattr(part, "epoch", None)


def check_sharded(loader: Any, shards: int, shard: int) -> bool:
    """Whether the user has sharded ``loader`` already.

    Known are a ``DistributedSampler`` and samplers like it, Hugging Face's ``split_dataset_by_node`` of a streaming
    data set, and WebDataset's ``split_by_node`` and resampled shards.

    Raises:
        ConfigurationError: It is sharded for other processes than these.
    """
    for part in loader_parts(loader):
        split: Any = getattr(part, "_distributed", None)
        if isinstance(part, Sampler) and hasattr(part, "num_replicas") and hasattr(part, "rank"):
            given, name = (part.num_replicas, part.rank), f"{type(part).__name__}(num_replicas={{}}, rank={{}})"
        elif hasattr(split, "world_size") and hasattr(split, "rank"):
            given, name = (split.world_size, split.rank), "split_dataset_by_node(world_size={}, rank={})"
        elif any(_splits_nodes(stage) for stage in getattr(part, "pipeline", None) or ()):
            return True
        else:
            continue
        if given != (shards, shard):
            raise ConfigurationError(
                f"{name.format(*given)}: this is process {shard} of {shards}. Give it {shards} and {shard}, or leave "
                "it out: prepare shards the loader itself."
            )
        return True
    return False


def _splits_nodes(stage: Any) -> bool:
    names = (getattr(stage, "__name__", ""), type(stage).__name__, getattr(getattr(stage, "f", None), "__name__", ""))
    return any(name in ("split_by_node", "ResampledShards", "ResampledShardList") for name in names)
