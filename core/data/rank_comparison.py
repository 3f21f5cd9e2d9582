"""A comparison of the processes' data before it is divided: it is one part of each only if all read the same.

A data set or a sampler that divides itself by rank would otherwise be divided a second time, and most of it lost.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Subset, TensorDataset

from ..errors import ConfigurationError
from ..strategies.base import Strategy
from ..strategies.parallel import ProcessGroupStrategy
from ..utilities.nested import leaves
from ..utilities.objects import sendable
from .loader_structure import loader_parts
from .shards import index_source

logger = logging.getLogger(__name__)

FACTS = 9
"""How many numbers describe what a process has read: whether it has read anything, and eight parts of its items."""

ITEMS, ELEMENTS = 8, 1024
"""How many items are looked at, and how many elements of each tensor or characters of each text."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Integers by the size of a tensor's elements in bytes."""

DEPTH, HELD = 3, 4096
"""How deep in a data set, and at how many of the values that it holds, is looked."""

NAMES_OF_RANKS = {"get_rank", "get_world_size", "rank", "world_size", "num_replicas", "global_rank", "local_rank"}
NAMES_OF_RANKS |= {"process_index", "num_processes", "RANK", "WORLD_SIZE", "LOCAL_RANK"}

REMEDY = (
    "If it yields only this process's part, say so: runtime.prepare_data_loader(loader, sharded=True), or "
    "Trainer(use_distributed_sampler=False)."
)
TOGETHER = "but the processes of this strategy work on each batch together: all read the same, and none a part."


def facts_of_items(items: Sequence[Any]) -> list[int]:
    """Numbers that distinguish these items of a stream from others.

    One number for each part of an item, such as its label; positive where the items differ in it.
    """
    parts: dict[str, list[Any]] = {}
    for item in items[:ITEMS]:
        for place, leaf in leaves(item):
            if (value := _plain(leaf)) is not None:
                parts.setdefault(place, []).append(value)
    found = [_number(values) * (1 if any(value != values[0] for value in values) else -1) for values in parts.values()]
    last = FACTS - 2
    return [1, *found[:last], -_number([len(items), *found[last:]])] + [0] * (last - len(found))


def facts_of_state(state: Any) -> list[int]:
    """Numbers that tell the state of an object from another process's: as for items, and with sums of all values."""
    return [*facts_of_items([state]), *(_sum(leaf) for _, leaf in leaves(state))]


def _sum(leaf: Any) -> int:
    """A number of all values of a tensor, array or text; 0 where it is not known how."""
    if isinstance(leaf, Tensor):
        if type(leaf) not in (Tensor, nn.Parameter) or leaf.is_nested or leaf.layout is not torch.strided:
            return 0
        words = sendable(leaf.detach().cpu()).view(-1).view(_WORDS[leaf.element_size()])
        return int(words.sum(dtype=torch.int64))
    leaf = leaf.encode(errors="surrogatepass") if isinstance(leaf, str) else leaf
    has_pointers = getattr(getattr(leaf, "dtype", None), "hasobject", False)
    leaf = leaf.tobytes() if hasattr(leaf, "tobytes") and not has_pointers else leaf
    return zlib.crc32(leaf) if isinstance(leaf, bytes) else 0


def facts_of_indices(indices: Sequence[Any]) -> list[int]:
    """A number that tells these indices of a sampler from others."""
    return [_number(list(indices))]


def _plain(leaf: Any) -> Any:
    """Plain values that distinguish ``leaf`` from another; ``None`` where it is not known how."""
    if isinstance(leaf, bool | int | float):
        return leaf
    if isinstance(leaf, str | bytes):
        return leaf[:ELEMENTS]
    if isinstance(leaf, Tensor) and (leaf.is_nested or leaf.layout is not torch.strided):
        return None
    if hasattr(leaf, "flatten") and hasattr(leaf, "tolist"):  # a tensor or an array
        return leaf.flatten()[:ELEMENTS].tolist()
    return leaf.tobytes() if hasattr(leaf, "tobytes") else None  # an image


def _number(values: Any) -> int:
    # Above 0, since it may get a sign, and small enough for int64.
    return (int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "little") >> 2) + 1


class Comparison:
    """Compares what the processes have read at the start of their first pass over a loader.

    It is no collective: a process may have no batch, or never iterate over the loader. Each leaves a note in the store
    of the run, and compares itself with the first that did.

    Args:
        strategy: Has the store.
        loader: The user's own.
    """

    def __init__(self, strategy: ProcessGroupStrategy, loader: Any) -> None:
        self._strategy, self._loader = strategy, loader
        meetings = strategy.board.meetings if strategy.board is not None else {}
        self._number = meetings["data"] = meetings.get("data", -1) + 1

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # another process's store is another one

    def __call__(self, facts: list[int], epoch: int, offset: int) -> None:
        """Compare ``facts``, read in pass ``epoch`` from ``offset`` on.

        Raises:
            ConfigurationError: They differ, and the data is surely not what every process is to read.
        """
        board, rank = self._strategy.board, self._strategy.global_rank
        if board is None:
            return
        if len(facts) == 1:
            facts = [*facts, *facts_of_items(_items_known(self._loader))]
        place = f"data/{self._number}/{epoch}/{offset}"
        board.set_once(place, " ".join(map(str, [rank, *facts])).encode())
        other, *theirs = map(int, board.get(place).split())
        if theirs == facts:
            return
        problem = self._problem(facts, theirs, f"rank {rank} than in rank {other}")
        board.set_once(f"{place}/said", str(rank).encode())
        if board.get(f"{place}/said") == str(rank).encode():
            logger.warning("%s", problem)

    def _problem(self, facts: list[int], theirs: list[int], ranks: str) -> str:
        shards, dataset = self._strategy.data_shards, getattr(self._loader, "dataset", None)
        is_stream = len(facts) == FACTS
        if not is_stream and facts[0] != theirs[0]:
            source = index_source(self._loader)[0]
            told = (
                f"but each of the {shards} processes takes its part of the indices that all read. {REMEDY} Otherwise "
                "draw"
                if shards > 1
                else f"{TOGETHER} Draw"
            )
            raise ConfigurationError(
                f"dataloaders: {type(source).__name__} yields other indices in {ranks}, {told} its order from torch's "
                "generator, or from one with the same seed in every process."
            )
        told = (
            f"but each of the {shards} processes takes its part of the samples that all have: of data that is already "
            f"divided, only 1/{shards} is used. {REMEDY}"
            if shards > 1
            else TOGETHER
        )
        problem = (
            f"dataloaders: {type(dataset).__name__} has other samples in {ranks}, {told} If it is random, draw it in "
            "every process with the same seed, as by core.seed_everything(seed)."
        )
        is_alike_in_part = any(own == other > 0 for own, other in zip(facts[1:], theirs[1:], strict=True))
        asks = is_stream and any(_knows_ranks(part) for part in loader_parts(self._loader)[1:])
        if not is_alike_in_part and (asks or _is_of_arrow(dataset)):
            raise ConfigurationError(problem)
        return problem


def comparison(strategy: Strategy, loader: Any) -> Comparison | None:
    """A comparison of what the processes read from ``loader``; ``None`` without a store."""
    return Comparison(strategy, loader) if isinstance(strategy, ProcessGroupStrategy) else None


def _knows_ranks(part: Any) -> bool:
    """Whether the code of the class of ``part`` asks, or is told, which process this is; or its stream is split."""
    if any(getattr(value, "_distributed", None) is not None for value in getattr(part, "__dict__", {}).values()):
        return True  # Hugging Face's, within a class of the user's
    classes = [cls for cls in type(part).__mro__ if cls.__module__.partition(".")[0] not in ("torch", "builtins")]
    return any(_names_ranks(value) for cls in classes for value in vars(cls).values())


def _names_ranks(function: Any) -> bool:
    return isinstance(function, FunctionType) and bool(NAMES_OF_RANKS & set(_names(function.__code__)))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant


def is_same_everywhere(loader: Any, strategy: Strategy) -> bool:
    """Whether nothing says that an iterable data set is another in each process, so that one can read it for all.

    Every process calls this. Looked at are the code of its class, which may ask for the rank, and what it holds: plain
    values, which may differ between the processes, and functions. Hugging Face's says by itself whether it is split.
    """
    parts = loader_parts(loader)[1:]
    held = list(islice(_held([getattr(part, "__dict__", {}) for part in parts], DEPTH), HELD))
    asks = any(_knows_ranks(part) for part in parts if not hasattr(part, "_distributed"))
    asks = asks or any(map(_names_ranks, held))
    plain = [value for leaf in held if (value := _plain(leaf)) is not None]
    given = strategy.all_gather_object((asks, _number(plain)))
    return given == [(False, given[0][1])] * len(given)


def _held(data: Any, depth: int) -> Iterator[Any]:
    for _, leaf in leaves(data):
        yield leaf
        inner = getattr(leaf, "__dict__", None)
        if depth and inner and not isinstance(leaf, type | ModuleType):
            yield from _held(inner, depth - 1)


def data_set_facts(loader: Any) -> list[int]:
    """What distinguishes the map-style data set of ``loader`` from others: its length, and the items of a Subset."""
    dataset: Any = getattr(loader, "dataset", None)
    try:
        facts = [-1 if isinstance(dataset, IterableDataset) else len(dataset)]
    except TypeError:
        return []
    while type(dataset) is Subset:
        facts.append(_number(list(dataset.indices[:ELEMENTS])))
        dataset = dataset.dataset
    return facts


def _items_known(loader: Any) -> list[Any]:
    """The first and the last item of the map-style data set, where no code of the user's own reads them."""
    dataset = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if _is_of_arrow(dataset):
        dataset = dataset.with_format(None)
    elif type(dataset) not in (TensorDataset, list, tuple, range):
        return []
    return [dataset[0], dataset[-1]] if len(dataset) else []


def _is_of_arrow(dataset: Any) -> bool:
    """Whether it is Hugging Face's: its rows are not random."""
    return hasattr(dataset, "_fingerprint") and hasattr(dataset, "with_format")


def refuse_other_data(loader: Any, facts: list[int], first: list[int], rank: int, shards: int) -> None:
    """Reject a map-style data set that is another than rank 0's: see :func:`data_set_facts`.

    Raises:
        ConfigurationError: It is.
    """
    if facts == first:
        return
    kind = type(loader.dataset).__name__
    told = (
        f"but each process takes its part of the items that all have. {REMEDY} Otherwise make"
        if shards > 1
        else f"{TOGETHER} Make"
    )
    lengths = f"{facts[0]} items and {first[0]}" if facts[:1] != first[:1] else f"both {facts[0]} items, but others"
    raise ConfigurationError(
        f"dataloaders: the {kind} of rank {rank} is not that of rank 0 ({lengths}), {told} it alike in every process, "
        "as by core.seed_everything(seed) before random_split."
    )
