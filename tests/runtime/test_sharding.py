"""Sharing a data loader out among processes, each of which is played here in turn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from core.runtime.sharding import shard_loader

from .loaders import KINDS, Numbers, OwnLoader, Stream, flat

SHARDS = [1, 2, 3]


CASES = [(kind, n) for kind in KINDS for n in (0, 1, 2, 5, 12, 13, 23) if n or "shuffled" not in kind]
"""With so many items; torch itself refuses to shuffle none."""


def passes(
    make: Callable[[], DataLoader[Any]], shards: int, epoch: int = 0, evaluation: bool = False
) -> list[list[Any]]:
    """The batches that each of the processes gets, each with a loader of its own."""
    found = []
    for shard in range(shards):
        torch.manual_seed(1000 + shard)  # processes do not draw alike
        random.seed(1000 + shard)
        np.random.seed(1000 + shard)
        loader, epochs = shard_loader(make(), shards, shard, evaluation)
        if epochs is not None:
            epochs.set_epoch(epoch)
        found.append(list(loader))
    return found


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize(("kind", "n"), CASES)
def test_training_covers_every_item_in_equal_steps(kind: str, n: int, shards: int) -> None:
    """Each item once, but for a few that come twice so that all make as many steps; fewer items than processes too."""
    by_shard = passes(lambda: KINDS[kind](n), shards)
    assert len({len(batches) for batches in by_shard}) == 1
    assert len({len(flat(batches)) for batches in by_shard}) == 1 or "custom batch" in kind
    counts = Counter(item for batches in by_shard for item in flat(batches))
    assert set(counts) == set(range(n))
    a_batch = 2 if "custom batch" in kind else 1
    repeated = sum(counts.values()) - n
    assert repeated <= (shards - 1) * a_batch
    assert n == 0 or n < shards or max(counts.values()) <= 2


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize(("kind", "n"), CASES)
def test_evaluation_repeats_nothing(kind: str, n: int, shards: int) -> None:
    """Each item once, in the loader's own batches, dealt out in turn; fewer batches than processes leave some idle."""
    by_shard = passes(lambda: KINDS[kind](n), shards, evaluation=True)
    assert sorted(item for batches in by_shard for item in flat(batches)) == list(range(n))
    lengths = [len(batches) for batches in by_shard]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1
    if "shuffled" not in kind and "stream" not in kind:
        own = list(KINDS[kind](n))
        for shard, batches in enumerate(by_shard):
            assert [flat([batch]) for batch in batches] == [flat([batch]) for batch in own[shard::shards]]


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "stream" not in kind])
def test_len_is_the_number_of_batches(kind: str, evaluation: bool, drop_last: bool, shards: int) -> None:
    """Of each process, wherever torch knows it of the user's loader."""
    for shard in range(shards):
        made = KINDS[kind](13)
        if drop_last and made.batch_size is not None:
            made = DataLoader(made.dataset, made.batch_size, sampler=made.sampler, drop_last=True)
        loader, _ = shard_loader(made, shards, shard, evaluation)
        assert len(loader) == len(list(loader))


@pytest.mark.parametrize("n", [13, 24])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("epoch", [0, 5])
def test_training_is_in_the_order_of_torchs_distributed_sampler(epoch: int, shuffle: bool, n: int) -> None:
    """Batch by batch, so that a script with one, written by hand, gives the same bits."""
    found = passes(lambda: DataLoader(Numbers(n), batch_size=4, shuffle=shuffle), 3, epoch)
    for shard, batches in enumerate(found):
        sampler: DistributedSampler[int] = DistributedSampler(Numbers(n), 3, shard, shuffle=shuffle)
        sampler.set_epoch(epoch)
        expected = DataLoader(Numbers(n), batch_size=4, sampler=sampler)
        assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in expected]


def test_training_with_drop_last() -> None:
    """Incomplete batches are left out, of each process alike."""
    by_shard = passes(lambda: DataLoader(Numbers(23), batch_size=4, shuffle=True, drop_last=True), 2)
    assert [[len(batch) for batch in batches] for batches in by_shard] == [[4, 4, 4], [4, 4, 4]]
    assert passes(lambda: DataLoader(Numbers(7), batch_size=4, drop_last=True), 2) == [
        [pytest.approx(torch.tensor([0, 2, 4, 6]))],
        [pytest.approx(torch.tensor([1, 3, 5, 0]))],
    ]


class Shuffling(Sampler[int]):
    """A sampler of the user's own that draws from a generator of python, numpy or torch."""

    def __init__(self, draw: Callable[[list[int]], list[int]]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(list(range(24))))

    def __len__(self) -> int:
        return 24


RANDOM: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": lambda: KINDS["shuffled"](24),
    "with replacement": lambda: DataLoader(Numbers(24), sampler=RandomSampler(Numbers(24), True, 30)),
    "weighted": lambda: DataLoader(Numbers(24), sampler=WeightedRandomSampler([1.0] * 24, 30)),
    "weighted, its own generator": lambda: DataLoader(
        Numbers(24), sampler=WeightedRandomSampler([1.0] * 24, 30, generator=Generator().manual_seed(3))
    ),
    "by torch": lambda: DataLoader(Numbers(24), sampler=Shuffling(lambda order: torch.randperm(24).tolist())),
    "by python": lambda: DataLoader(Numbers(24), sampler=Shuffling(lambda order: random.sample(order, 24))),
    "by numpy": lambda: DataLoader(Numbers(24), sampler=Shuffling(lambda order: np.random.permutation(24).tolist())),
    "batches": lambda: DataLoader(
        Numbers(24), batch_sampler=BatchSampler(RandomSampler(Numbers(24), num_samples=30), 4, False)
    ),
}

OF_THIRTY = ("with replacement", "weighted", "weighted, its own generator", "batches")
"""Those that draw 30 of the 24 items; the others each once."""


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("name", RANDOM)
def test_random_orders_are_one_order_in_all_processes(name: str, evaluation: bool) -> None:
    """Together the processes have what one draw of the sampler gives, though each of them draws on its own."""
    for epoch in (0, 1):
        by_shard = passes(RANDOM[name], 3, epoch, evaluation)
        again = passes(RANDOM[name], 3, epoch, evaluation)
        assert [flat(batches) for batches in by_shard] == [flat(batches) for batches in again]
        # As one process of one, told the same epoch, has them.
        alone, epochs = shard_loader(RANDOM[name](), 1, 0, evaluation)
        epochs.set_epoch(epoch)
        together = Counter(item for batches in by_shard for item in flat(batches))
        assert together == Counter(flat(list(alone)))
        assert sum(together.values()) == (30 if name in OF_THIRTY else 24)


@pytest.mark.parametrize("name", [name for name in RANDOM if "its own generator" not in name])
def test_each_epoch_draws_anew(name: str) -> None:
    """The order of epoch 1 is not that of epoch 0."""
    first, second = (flat(passes(RANDOM[name], 2, epoch)[0]) for epoch in (0, 1))
    assert first != second


@pytest.mark.parametrize("name", RANDOM)
def test_sharing_out_draws_nothing_from_the_global_generators(name: str) -> None:
    """Beyond what each pass over a DataLoader draws: one number of torch's."""
    loader, _ = shard_loader(RANDOM[name](), 2, 0)
    torch.manual_seed(5)
    iter(DataLoader(Numbers(1)))
    expected = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    torch.manual_seed(5)
    list(loader)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]
    assert np.random.get_state()[1].tolist() == expected[2]  # type: ignore[index]


class Endless(Sampler[int]):
    """A sampler without a length, which never ends."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number % 10
            number += 1


def test_an_endless_sampler_is_dealt_out_as_it_goes() -> None:
    """Nothing is drawn ahead of what is read."""
    for shard in range(2):
        loader, _ = shard_loader(DataLoader(Numbers(10), batch_size=2, sampler=Endless()), 2, shard)
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(3)] == [
            [shard, 2 + shard],
            [4 + shard, 6 + shard],
            [8 + shard, shard],
        ]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("make", [Numbers, Stream])
@pytest.mark.parametrize("evaluation", [False, True])
def test_workers(make: Any, evaluation: bool, persistent: bool) -> None:
    """With two worker processes that read for each process: the same guarantees, pass after pass."""
    by_shard = []
    for shard in range(2):
        own = DataLoader(make(13), batch_size=4, num_workers=2, persistent_workers=persistent)
        started = iter(own)
        loader, _ = shard_loader(own, 2, shard, evaluation)
        first, second = list(loader), list(loader)
        assert flat(first) == flat(second)
        by_shard.append(first)
        assert sorted(flat(list(started))) == list(range(13)), "the user's own is not disturbed"
        if persistent:
            loader._iterator._shutdown_workers()  # type: ignore[union-attr]
            started._shutdown_workers()  # type: ignore[attr-defined]
    counts = Counter(item for batches in by_shard for item in flat(batches))
    assert set(counts) == set(range(13))
    if evaluation:
        assert set(counts.values()) == {1}
    else:
        assert len(by_shard[0]) == len(by_shard[1])
        assert sum(counts.values()) <= 13 + 2


def collate(batch: list[int]) -> torch.Tensor:
    return torch.tensor(batch) * 2


@pytest.mark.parametrize("evaluation", [False, True])
def test_the_new_loader_is_of_the_users_class_with_all_of_its_settings(evaluation: bool) -> None:
    """Attributes, collation and iteration are those of the user's own class."""
    own = OwnLoader(Numbers(9), batch_size=2, collate_fn=collate, label="mine", timeout=0)
    loader, _ = shard_loader(own, 2, 1, evaluation)
    assert type(loader) is OwnLoader
    assert loader.label == "mine"
    assert loader.collate_fn is collate
    assert loader.dataset is own.dataset
    expected = [[104, 106], [112, 114]] if evaluation else [[102, 106], [110, 114], [100]]
    assert [batch.tolist() for batch in loader] == expected


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_users_loader_is_left_as_it_was(kind: str, evaluation: bool) -> None:
    """It has its own data set, sampler and batches, and may be iterated meanwhile."""
    own = KINDS[kind](13)
    before = dict(vars(own))
    started = iter(own)
    loader, _ = shard_loader(own, 2, 0, evaluation)
    assert loader is not own
    list(loader)
    assert vars(own) == before
    assert sorted(flat(list(started))) == list(range(13))


def test_a_stream_is_still_known_by_its_attributes() -> None:
    """What the user's data set has, the shared out one has."""
    loader, _ = shard_loader(DataLoader(Stream(4)), 2, 0)
    assert loader.dataset.note == "kept"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        loader.dataset.no_such_thing  # type: ignore[attr-defined]  # noqa: B018
