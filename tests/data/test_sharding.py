"""Sharding a data loader among processes, each of which is played here in turn."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator
from torch.nn.utils.rnn import pack_sequence, unpack_sequence
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, Subset, WeightedRandomSampler

from core.data import DataSettings
from core.errors import ConfigurationError, WrongTypeError

from .loaders import KINDS, Numbers, OwnLoader, SizedStream, Stream, flat, gathered, prepared

SHARDS = [1, 2, 3]
UNEVEN = DataSettings(even_batches=False)

CASES = [(kind, n) for kind in KINDS for n in (0, 1, 2, 5, 12, 13, 23) if n or "shuffled" not in kind]
"""With so many items; torch itself refuses to shuffle none."""


def shuffled(n: int = 34, size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(n), size, shuffle=True, **options)


# -- orders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [2, 3])
def test_the_seed_decides_the_order(shards: int) -> None:
    """Torch's at prepare, that of process 0 alone, gives the order that plain torch draws in one process."""
    orders = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        plain = shuffled()
        expected = [flat(list(plain)) for _ in range(3)]
        loaders = prepared(shuffled, shards, seed=seed)
        found = [gathered(loaders) for _ in range(3)]
        assert [[item for step in one for item in step] for one in found] == expected
        orders += expected
    assert len(set(map(tuple, orders))) == 9


@pytest.mark.parametrize("shards", SHARDS)
def test_a_loaders_own_generator_decides_the_order(shards: int) -> None:
    """As in plain torch, whatever else the processes draw; that of process 0 where they differ."""
    plain = shuffled(generator=Generator().manual_seed(8))
    expected = [flat(list(plain)) for _ in range(2)]
    seeds = iter((8, 9, 10))
    loaders = prepared(lambda: shuffled(generator=Generator().manual_seed(next(seeds))), shards, seed=0)
    for order in expected:
        torch.rand(3)
        assert [item for step in gathered(loaders) for item in step] == order


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("settings", [{"data_seed": 5}, {"use_seedable_sampler": True}])
def test_a_seeded_order_depends_on_nothing_else(settings: dict[str, Any], shards: int) -> None:
    """On one process too: nothing that is drawn after prepare changes it, and it is the same on any number."""
    expected = [
        [item for step in gathered(one) for item in step]
        for one in [prepared(shuffled, 1, seed=3, settings=DataSettings(**settings))] * 3
    ]
    loaders = prepared(shuffled, shards, seed=3, settings=DataSettings(**settings))
    for order in expected:
        torch.rand(3)
        assert [item for step in gathered(loaders) for item in step] == order
    if "data_seed" in settings:
        torch.manual_seed(5)
        assert flat(list(shuffled())) == expected[0]


def test_loaders_that_are_prepared_one_after_another_have_separate_orders() -> None:
    """Though torch's generator is seeded once."""
    first, second = (prepared(shuffled, 2)[0] for _ in range(2))
    assert flat(list(first)) != flat(list(second))


def test_one_process_draws_as_plain_torch_does() -> None:
    """From torch's generator at each pass, whatever else draws from it."""
    torch.manual_seed(4)
    plain = shuffled()
    expected = []
    for _ in range(3):
        expected.append(flat(list(plain)))
        torch.rand(5)
    torch.manual_seed(4)
    (loader,) = prepared(shuffled, 1)
    for order in expected:
        assert flat(list(loader)) == order
        torch.rand(5)


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
    orders = []
    for shards in (2, 3, 2):
        loaders = prepared(RANDOM[name], shards, seed=6, evaluation=evaluation)
        orders.append([[item for step in gathered(loaders) for item in step] for _ in range(2)])
        assert [len(order) for order in orders[-1]] == [30 if name in OF_THIRTY else 24] * 2
    assert orders[0] == orders[1] == orders[2]
    assert orders[0][0] != orders[0][1], "each pass draws again"
    other = prepared(RANDOM[name], 2, seed=7)
    has_own = "its own" in name
    assert ([item for step in gathered(other) for item in step] == orders[0][0]) == has_own


@pytest.mark.parametrize("name", RANDOM)
def test_a_pass_on_several_processes_draws_nothing_from_the_global_generators(name: str) -> None:
    """What a model draws does not depend on how its data is ordered."""
    loader = prepared(RANDOM[name], 2)[0]
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    list(loader)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]


# -- shares ----------------------------------------------------------------------------------------------------------


def test_evaluation_on_three_processes() -> None:
    """34 items in batches of 8: gathered without padding, each item is there once, in order."""
    loaders = prepared(lambda: DataLoader(Numbers(34), 8), 3, evaluation=True)
    assert [len(loader) for loader in loaders] == [2, 2, 2]
    passes = [iter(loader) for loader in loaders]
    assert [next(one).tolist() for one in passes] == [[*range(8)], [*range(8, 16)], [*range(16, 24)]]
    assert [(loader.real_samples, loader.remainder) for loader in loaders] == [(None, -1)] * 3
    assert [next(one).tolist() for one in passes] == [[24, 25, 26, 27], [28, 29, 30, 31], [32, 33, 0, 1]]
    assert [(loader.real_samples, loader.remainder) for loader in loaders] == [((4, 4, 2), 10)] * 3
    assert all(loader.end_of_dataloader for loader in loaders)


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize(("kind", "n"), CASES)
def test_training_covers_every_item_in_equal_steps(kind: str, n: int, shards: int) -> None:
    """Each item once, but for a few that come twice so that all make as many steps; fewer items than processes too."""
    by_shard = [list(loader) for loader in prepared(lambda: KINDS[kind](n), shards)]
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
def test_uneven_batches_repeat_nothing(kind: str, n: int, shards: int) -> None:
    """Each item once, in the loader's own batches, dealt out in turn; fewer batches than processes leave some idle."""
    by_shard = [list(loader) for loader in prepared(lambda: KINDS[kind](n), shards, settings=UNEVEN)]
    assert sorted(item for batches in by_shard for item in flat(batches)) == list(range(n))
    lengths = [len(batches) for batches in by_shard]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1
    if "shuffled" not in kind:
        own = list(KINDS[kind](n))
        for shard, batches in enumerate(by_shard):
            assert [flat([batch]) for batch in batches] == [flat([batch]) for batch in own[shard::shards]]


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("n", [5, 13, 24])
def test_len_of_a_sized_stream(n: int, even: bool, workers: int, drop_last: bool, shards: int) -> None:
    """Is the number of batches, also where workers each have an incomplete one at their end."""

    def make() -> DataLoader[Any]:
        return DataLoader(SizedStream(n), 4, drop_last=drop_last, num_workers=workers)

    if workers and (n, shards) == (13, 2):
        loaders = prepared(make, shards, settings=DataSettings(even_batches=even))
        assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders]
        return
    expected = []  # as workers would read, without starting them
    for shard in range(shards):
        steps = 0
        for worker in range(max(workers, 1)):
            part = list(range(worker, n, max(workers, 1)))
            own: DataLoader[int] = DataLoader(part, 4, drop_last=drop_last)  # type: ignore[arg-type]
            steps += len(prepared(partial(copy, own), shards, settings=DataSettings(even_batches=even))[shard])
        expected.append(steps)
    assert [len(loader) for loader in prepared(make, shards, settings=DataSettings(even_batches=even))] == expected


def test_drop_last() -> None:
    """In training each incomplete global batch is dropped; in evaluation what one process drops."""

    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(23), 4, drop_last=True)

    assert [[len(batch) for batch in loader] for loader in prepared(make, 2)] == [[4, 4], [4, 4]]
    evaluated = gathered(prepared(make, 2, evaluation=True))
    assert [item for step in evaluated for item in step] == list(range(20))


def test_split_batches() -> None:
    """The processes divide each batch of the loader."""
    loaders = prepared(lambda: DataLoader(Numbers(22), 8), 2, settings=DataSettings(split_batches=True))
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [
        [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18]],
        [[4, 5, 6, 7], [12, 13, 14, 15], [19, 20, 21]],
    ]
    assert [loader.total_batch_size for loader in loaders] == [8, 8]
    assert prepared(lambda: DataLoader(Numbers(22), 8), 2)[0].total_batch_size == 16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataLoader(Numbers(9), 3), "batch_size=3 is not divisible by 2 processes. Choose .* such as 2"),
        (lambda: DataLoader(Stream(9), 5), "batch_size=5 is not divisible by 2 processes. Choose .* such as 4"),
        (lambda: DataLoader(Numbers(9), None), "batch_size=None"),
    ],
)
def test_batches_that_cannot_be_split(make: Any, message: str) -> None:
    """Are refused at prepare."""
    with pytest.raises(ConfigurationError, match=f"split_batches=True: .*{message}"):
        prepared(make, 2, settings=DataSettings(split_batches=True))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"split_batches": 1}, WrongTypeError),
        ({"dispatch_batches": "yes"}, WrongTypeError),
        ({"data_seed": 1.5}, WrongTypeError),
        ({"data_seed": True}, WrongTypeError),
        ({"data_seed": -1}, ConfigurationError),
    ],
)
def test_settings_that_are_refused(options: dict[str, Any], kind: type[Exception]) -> None:
    """The error names the setting."""
    with pytest.raises(kind, match=next(iter(options))):
        DataSettings(**options)


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
        batches = iter(prepared(lambda: DataLoader(Numbers(10), batch_size=2, sampler=Endless()), 2)[shard])
        start = 2 * shard
        assert [next(batches).tolist() for _ in range(3)] == [
            [start, start + 1],
            [start + 4, start + 5],
            [(start + 8) % 10, (start + 9) % 10],
        ]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("make", [Numbers, Stream])
@pytest.mark.parametrize("even", [False, True])
def test_workers(make: Any, even: bool, persistent: bool) -> None:
    """With two worker processes that read for each process: the same guarantees, pass after pass."""
    own = DataLoader(make(13), batch_size=4, num_workers=2, persistent_workers=persistent)
    started = iter(own)
    loaders = prepared(lambda: own, 2, settings=DataSettings(even_batches=even))
    counts: Counter[int] = Counter()
    steps = []
    for loader in loaders:
        first, second = list(loader), list(loader)
        assert flat(first) == flat(second)
        counts.update(flat(first))
        steps.append(len(first))
        if persistent:
            loader._reading.loader._iterator._shutdown_workers()
    assert sorted(flat(list(started))) == list(range(13)), "the user's own is not disturbed"
    if persistent:
        started._shutdown_workers()  # type: ignore[attr-defined]
    assert set(counts) == set(range(13))
    if even:
        assert steps[0] == steps[1]
        assert sum(counts.values()) <= 13 + 2
    else:
        assert set(counts.values()) == {1}


def test_workers_of_a_stream_mark_their_padding() -> None:
    """Each worker's last batch is incomplete, not the pass's last alone."""
    loaders = prepared(lambda: DataLoader(Stream(10), batch_size=2, num_workers=2), 2)
    found = gathered(loaders)
    assert sorted(item for step in found for item in step) == list(range(10))
    assert found == [[0, 2, 4, 6], [1, 3, 5, 7], [8], [9]]


def collate(batch: list[int]) -> torch.Tensor:
    return torch.tensor(batch) * 2


@pytest.mark.parametrize("make", [Numbers, Stream])
def test_batches_are_made_by_the_users_class_with_all_of_its_settings(make: Any) -> None:
    """Attributes, collation and iteration are those of the user's own class."""
    own = OwnLoader(make(9), batch_size=2, collate_fn=collate, label="mine", timeout=0)
    loader = prepared(lambda: own, 2)[1]
    assert isinstance(loader, DataLoader)
    assert (loader.label, loader.collate_fn, loader.dataset) == ("mine", collate, own.dataset)
    assert [batch.tolist() for batch in loader] == [[104, 106], [112, 114], [100]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_loader_is_left_as_it_was(kind: str) -> None:
    """It has its own data set, sampler and batches, and may be iterated meanwhile."""
    own = KINDS[kind](13)
    before = dict(vars(own))
    started = iter(own)
    list(prepared(lambda: own, 2)[0])
    assert vars(own) == before
    assert sorted(flat(list(started))) == list(range(13))


def test_dispatch_reads_in_process_0_alone() -> None:
    """The others get their part of what it read; its errors are raised in all."""

    class Watched(Numbers):
        def __init__(self, items: int, reader: bool) -> None:
            super().__init__(items)
            self.reader = reader

        def __getitem__(self, index: int) -> int:
            assert self.reader, "read in another process"
            if index == 30:
                raise OSError("no such item")
            return index

    readers = iter((True, False, False))
    settings = DataSettings(dispatch_batches=True)
    loaders = prepared(lambda: DataLoader(Watched(34, next(readers)), 4), 3, settings=settings)
    passes = [iter(loader) for loader in loaders]
    assert [next(one).tolist() for one in passes] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    with pytest.raises(OSError, match="no such item"):
        [next(passes[0]) for _ in range(3)]


@dataclasses.dataclass
class Made:
    """A batch whose class has no constructor for its fields."""

    items: dataclasses.InitVar[list[int]]
    x: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self, items: list[int]) -> None:
        self.x = torch.tensor(items)


def packed(items: list[int]) -> Any:
    """As many sequences of different lengths."""
    return pack_sequence([torch.full((1 + item % 3,), item) for item in items], enforce_sorted=False)


@pytest.mark.parametrize("items", [7, 9, 10, 13])
@pytest.mark.parametrize(
    ("collate", "read"),
    [
        (packed, lambda batch: [sequence[0] for sequence in unpack_sequence(batch)]),
        (lambda items: defaultdict(torch.Tensor, x=torch.tensor(items)), lambda batch: [*batch["x"], *batch["absent"]]),
        (Made, lambda batch: batch.x),
        (lambda items: {"x": torch.ones(len(items)), "name": np.array([f"{i}" for i in items])}, lambda b: b["name"]),
        (lambda items: [torch.ones(len(items)), [f"{i}" for i in items], None], lambda batch: batch[1]),
    ],
    ids=["packed", "defaultdict", "dataclass", "array", "list"],
)
def test_dispatched_batches_of_every_structure(collate: Any, read: Any, items: int) -> None:
    """All parts of an incomplete global batch are divided alike: each item comes once, in order, and classes stay."""
    settings = DataSettings(dispatch_batches=True)
    loaders = prepared(lambda: DataLoader(Stream(items), 4, collate_fn=collate), 3, settings=settings)
    found: list[int] = []
    for batches in zip(*loaders, strict=True):
        real = loaders[0].real_samples or (None,) * 3
        assert {type(batch) for batch in batches} == {type(collate([0]))}
        found += [int(item) for batch, count in zip(batches, real, strict=True) for item in [*read(batch)][:count]]
    assert found == [*range(items)]


@pytest.mark.parametrize("items", [11, 12, 13, 16])
def test_dispatched_batches_whose_tensors_differ_in_size(items: int) -> None:
    """Such as sequences that are joined to one tensor: each process gets whole batches, and each batch comes once."""

    def joined(items: list[int]) -> dict[str, torch.Tensor]:
        lengths = [1 + item % 3 for item in items]
        return {"x": torch.tensor(items).repeat_interleave(torch.tensor(lengths)), "lengths": torch.tensor(lengths)}

    settings = DataSettings(dispatch_batches=True)
    loaders = prepared(lambda: DataLoader(Stream(items), 2, collate_fn=joined), 3, settings=settings)
    found: list[int] = []
    for batches in zip(*loaders, strict=True):
        real = loaders[0].real_samples or (None,) * 3
        for batch, count in zip(batches, real, strict=True):
            parts = batch["x"].split(batch["lengths"].tolist())
            assert all(len(part.unique()) == 1 for part in parts)
            found += [int(part[0]) for part in parts[:count]]
    assert found == [*range(items)]


@pytest.mark.parametrize(
    "collate",
    [
        lambda items: torch.tensor(items).to_sparse(),
        lambda items: {"x": torch.tensor(items), "first": items[0]},
        lambda items: {"x": torch.tensor(items), f"of {items[0]}": 1},
    ],
    ids=["sparse", "a value for the batch", "other keys"],
)
def test_dispatched_batches_that_cannot_be_divided(collate: Any) -> None:
    """They are an error that says what to do, rather than the parts of another batch."""
    settings = DataSettings(dispatch_batches=True)
    loader = prepared(lambda: DataLoader(Stream(6), 4, collate_fn=collate), 2, settings=settings)[0]
    with pytest.raises(
        ConfigurationError, match=r"cannot be divided: .*Use dispatch_batches=False, drop_last=True, or"
    ):
        list(loader)


@pytest.mark.parametrize("make", [lambda part: Subset(Numbers(8), range(part, 8, 2)), lambda part: Numbers(8 + part)])
def test_a_data_set_that_differs_between_processes(make: Any) -> None:
    """Is refused at prepare, unless the user says that it is sharded."""
    parts = iter((0, 1, 0, 1))
    with pytest.raises(ConfigurationError, match=r"of rank 1 is not that of rank 0 .*sharded=True.*random_split"):
        prepared(lambda: DataLoader(make(next(parts)), 2), 2)
    loaders = prepared(lambda: DataLoader(make(next(parts)), 2), 2, sharded=True)
    assert flat(list(loaders[1])) == [make(1)[index] for index in range(len(make(1)))]
