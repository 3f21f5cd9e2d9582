"""The position in the data: saved at any batch, and continued in another process."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from core.data import DataSettings, PreparedLoader, skip_first_batches
from core.errors import CheckpointError, ConfigurationError
from core.random import get_host_rng_state, set_host_rng_state

from .loaders import KINDS, Numbers, Pairs, Reversed, Stream, flat, gathered, prepared

CASES = int(os.environ.get("RESUME_CASES", "60"))


class Noisy(Dataset[torch.Tensor]):
    """Items with random numbers of torch, numpy and Python."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(index)
        return torch.tensor([index, float(torch.rand(())), float(np.random.rand()), random.random()])


class NoisyStream(IterableDataset[torch.Tensor]):
    """A stream that shuffles by torch's generator."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[torch.Tensor]:
        for item in torch.randperm(self.items).tolist():
            yield torch.tensor([float(item), random.random()])


class Drawing(Sampler[int]):
    """A sampler that draws from Python's generator."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(self.items), self.items))

    def __len__(self) -> int:
        return self.items


def own(seed: int) -> Generator:
    return Generator().manual_seed(seed)


MAKES: dict[str, Callable[[int], DataLoader[Any]]] = {
    "in order": lambda w: DataLoader(Noisy(23), 4, num_workers=w),
    "shuffled": lambda w: DataLoader(Noisy(23), 4, shuffle=True, num_workers=w),
    "shuffled into whole batches": lambda w: DataLoader(Noisy(24), 4, shuffle=True, num_workers=w),
    "shuffled by a generator": lambda w: DataLoader(Noisy(23), 4, shuffle=True, generator=own(3), num_workers=w),
    "with replacement": lambda w: DataLoader(Noisy(23), 3, sampler=RandomSampler(range(23), True, 40), num_workers=w),
    "own sampler": lambda w: DataLoader(Noisy(23), 4, sampler=Drawing(23), num_workers=w),
    "own batches": lambda w: DataLoader(Noisy(23), batch_sampler=Pairs(23), num_workers=w),
    "no batches": lambda w: DataLoader(Noisy(23), None, shuffle=True, num_workers=w),
    "persistent": lambda w: DataLoader(Noisy(23), 4, shuffle=True, num_workers=w, persistent_workers=w > 0),
    "stream": lambda w: DataLoader(Stream(23), 4, num_workers=w),
    "shuffled stream": lambda w: DataLoader(NoisyStream(23), 4, num_workers=min(w, 1)),
}


def numbers(batch: Any) -> list[Any]:
    tensor: list[Any] = torch.as_tensor(batch).tolist()
    return tensor


def end(loader: PreparedLoader) -> None:
    """Stop workers that live on."""
    iterator = getattr(loader._reading.loader, "_iterator", None)
    if iterator is not None and loader.num_workers:
        iterator._shutdown_workers()


def check(number: int) -> None:
    rng = random.Random(number)
    kind, shards = rng.choice(list(MAKES)), rng.choice([1, 1, 2, 3])
    workers = rng.choice([0, 0, 0, 2]) if number % 4 else 2
    seeded, other = rng.random() < 0.3, 10_000 + number
    settings = DataSettings(use_seedable_sampler=seeded, dispatch_batches=False)
    # A model that draws too; on one process a stream that is not isolated must not mix its draws with the model's.
    draws = not (kind == "shuffled stream" and shards == 1 and not seeded)

    def train(batch: Any) -> tuple[Any, float]:
        return numbers(batch), float(torch.rand(())) if draws else 0.0

    def build(seed: int) -> PreparedLoader:
        return prepared(lambda: MAKES[kind](workers), shards, seed=seed, settings=settings)[-1]

    loader = build(number)
    epochs, stop_epoch = 3, rng.randrange(3)
    seen: list[Any] = []
    saved: Any = None
    length = None
    stop = rng.randrange(1, 3 if shards == 3 else 4)
    for epoch in range(epochs):
        for taken, batch in enumerate(loader, 1):
            seen.append(train(batch))
            if epoch == stop_epoch and taken == stop:
                saved = loader.state_dict(), get_host_rng_state()
                length = len(seen)
    end(loader)
    assert saved is not None
    assert length is not None
    again = build(other)
    torch.rand(5)
    again.load_state_dict(saved[0])
    set_host_rng_state(saved[1])
    rest = []
    for _ in range(stop_epoch, epochs):
        rest += [train(batch) for batch in again]
    end(again)
    assert rest == seen[length:], (number, kind, shards, workers, seeded, stop_epoch, stop)


@pytest.mark.parametrize("chunk", range(6))
def test_a_resumed_pass_has_the_rest(chunk: int) -> None:
    """Of the batches, with the random numbers of data set and model, and all passes after it."""
    for number in range(chunk, CASES, 6):
        check(number)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_data_that_is_skipped_is_not_loaded(workers: int, shards: int) -> None:
    """Neither after a resume nor by skip_first_batches."""
    loader = prepared(lambda: DataLoader(Noisy(40), 4, shuffle=True, num_workers=workers), shards)[0]
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed, skipping = (prepared(lambda: DataLoader(Noisy(40), 4, shuffle=True), shards)[0] for _ in range(2))
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == len(loader) - 3
    assert len(vars(resumed.dataset)["loaded"]) == 4 * (len(loader) - 3)
    assert len(list(skip_first_batches(skipping, 3))) == len(loader) - 3
    assert len(vars(skipping.dataset)["loaded"]) == 4 * (len(loader) - 3)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_skip_first_batches(kind: str, shards: int) -> None:
    """The rest of the pass that a loader would make; its next pass is the next epoch."""
    whole, skipped = (prepared(lambda: KINDS[kind](30), shards, seed=1)[-1] for _ in range(2))
    torch.manual_seed(2)
    expected = [list(map(numbers, whole)) for _ in range(2)]
    torch.manual_seed(2)
    rest = skip_first_batches(skipped, 2)
    assert list(map(numbers, rest)) == expected[0][2:]
    assert skipped.epoch == 1
    assert skipped.batches_taken == len(expected[0])
    assert list(map(numbers, skipped)) == expected[1]
    if "stream" not in kind:
        assert len(rest) == len(expected[0]) - 2
    plain = skip_first_batches([1, 2, 3], 2)
    assert (list(plain), list(plain)) == ([3], [3])


class Shuffled(Sampler[int]):
    """A sampler that draws from a generator which it keeps, of Python or NumPy."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        order = list(range(11))
        self.source.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return 11


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("make", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_sampler_with_a_generator_of_its_own(make: Callable[[int], Any], shards: int) -> None:
    """Its order goes on from each batch, and from the end of each epoch, as if the run had not been interrupted."""

    def build(seed: int) -> PreparedLoader:
        seeds = iter(range(seed, seed + shards))  # of each process another
        return prepared(lambda: DataLoader(Numbers(11), 2, sampler=Shuffled(make(next(seeds)))), shards)[-1]

    loader, seen, states = build(3), list[list[int]](), list[dict[str, Any]]()
    for _ in range(3):
        for batch in loader:
            seen.append(batch.tolist())
            states.append(loader.state_dict())
        states[-1] = loader.state_dict()
    assert len({tuple(batch) for batch in seen}) > len(seen) // 2
    for number, state in enumerate(states, 1):
        again = build(30)
        again.load_state_dict(state)
        rest = [batch.tolist() for _ in range(3) for batch in again]
        assert rest[: len(seen) - number] == seen[number:]


@pytest.mark.parametrize("number", [-1, 1.0, True, "2"])
def test_skip_first_batches_of_no_number(number: Any) -> None:
    """Is refused."""
    with pytest.raises(ConfigurationError, match=r"num_batches=.*integer ≥ 0"):
        skip_first_batches([1], number)


def test_a_loaded_position_and_skip_first_batches_are_not_added() -> None:
    """A script that does both, as Accelerate's need to, continues where it stopped."""
    loader = prepared(lambda: DataLoader(Numbers(24), 4), 1)[0]
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    resumed = prepared(lambda: DataLoader(Numbers(24), 4), 1)[0]
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert numbers(next(iter(skip_first_batches(resumed, 2)))) == [8, 9, 10, 11]


def test_what_the_position_is() -> None:
    """Within a pass, at its end before and after the loop has noticed, and after set_epoch."""
    loader = prepared(lambda: DataLoader(Numbers(10), 4), 1)[0]

    def position() -> tuple[int, int]:
        state = loader.state_dict()
        return state["epoch"], state["batches"]

    assert position() == (0, 0)
    for number, _ in enumerate(loader, 1):
        assert position() == (0, number)
        assert loader.end_of_dataloader == (number == 3)
        assert loader.batches_taken == number
    assert position() == (1, 0)
    for _ in loader:
        break
    assert (position(), loader.state_dict()["left"]) == ((1, 1), True)
    loader.set_epoch(5)
    assert position() == (5, 0)


def test_a_state_at_the_last_batch_continues_with_nothing() -> None:
    """And then with the next pass."""
    loader = prepared(lambda: DataLoader(Numbers(10), 4), 1)[0]
    states = [loader.state_dict() for _ in loader]
    resumed = prepared(lambda: DataLoader(Numbers(10), 4), 1)[0]
    resumed.load_state_dict(states[-1])
    assert list(resumed) == []
    assert len(list(resumed)) == 3


def at_epoch_1(loader: PreparedLoader) -> PreparedLoader:
    loader.set_epoch(1)
    return loader


BEGIN_THE_NEXT: dict[str, Callable[[PreparedLoader], PreparedLoader]] = {
    "set_epoch": at_epoch_1,
    "skip_first_batches": lambda loader: skip_first_batches(loader, 0),
}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("kind", "begin"), [(kind, begin) for kind in MAKES if "stream" not in kind for begin in BEGIN_THE_NEXT]
)
def test_a_script_that_counts_steps_begins_with_the_next_epoch(kind: str, shards: int, begin: str) -> None:
    """After a state at the last batch, whose script names that epoch: no pass is empty, and the order is the same."""
    loader = prepared(lambda: MAKES[kind](0), shards, seed=1)[-1]
    for _ in loader:
        state, drawn = loader.state_dict(), get_host_rng_state()
    expected = [list(map(numbers, loader)) for _ in range(2)]
    resumed = prepared(lambda: MAKES[kind](0), shards, seed=2)[-1]
    resumed.load_state_dict(state)
    set_host_rng_state(drawn)
    assert list(map(numbers, BEGIN_THE_NEXT[begin](resumed))) == expected[0]
    assert list(map(numbers, resumed)) == expected[1]


def test_a_count_of_a_whole_epoch_leaves_nothing_of_it() -> None:
    """A script that has its own number of the epoch skips all batches of it, and then begins the next one."""
    loader = prepared(lambda: DataLoader(Numbers(10), 4), 1)[0]
    states = [loader.state_dict() for _ in loader]
    resumed = prepared(lambda: DataLoader(Numbers(10), 4), 1)[0]
    resumed.load_state_dict(states[-1])
    assert list(skip_first_batches(resumed, 3)) == []
    assert len(list(resumed)) == 3


@pytest.mark.parametrize("evaluation", [False, True])
def test_a_pass_that_was_left(evaluation: bool) -> None:
    """By break: is continued after a resume, and for evaluation begun again."""
    loader = prepared(lambda: DataLoader(Numbers(10), 4), 1, evaluation=evaluation)[0]
    for _ in loader:
        break
    resumed = prepared(lambda: DataLoader(Numbers(10), 4), 1, evaluation=evaluation)[0]
    resumed.load_state_dict(loader.state_dict())
    assert flat(list(resumed)) == list(range(0 if evaluation else 4, 10))


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Numbers(50), 4),
        lambda: DataLoader(Numbers(50), 4, shuffle=True),
        lambda: DataLoader(Numbers(50), 4, shuffle=True, generator=own(5)),
        lambda: DataLoader(Numbers(50), 4, sampler=Reversed(50)),
        lambda: DataLoader(Numbers(50), batch_sampler=Pairs(50)),
        lambda: DataLoader(Stream(50), 4),
    ],
)
def test_another_number_of_processes(make: Any, before: int, after: int) -> None:
    """Is refused within a pass unless asked for; then what is left is seen once, in the order of the first run."""
    loaders = prepared(make, before, seed=3)
    passes = [iter(loader) for loader in loaders]
    seen = [item for _ in range(2) for one in passes for item in flat([next(one)])]
    state = loaders[0].state_dict()
    whole = prepared(make, before, seed=3)
    expected = [item for step in gathered(whole) for item in step]
    assert seen == expected[: len(seen)]
    resumed = prepared(make, after, seed=4)
    if before != after:
        with pytest.raises(CheckpointError, match=f"on {before} process.* this run has {after}.*reshard=True"):
            resumed[0].load_state_dict(state)
    for loader in resumed:
        loader.load_state_dict(state, reshard=True)
    assert [item for step in gathered(resumed) for item in step] == expected[len(seen) :]


@pytest.mark.parametrize("state", [{}, {"epoch": 1}])
def test_a_state_of_something_else(state: dict[str, Any]) -> None:
    """The error names what is missing."""
    loader = prepared(lambda: DataLoader(Numbers(10), 4), 1)[0]
    with pytest.raises(CheckpointError, match=r"state of a loader: 'batches'.* missing"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_and_workers_draw_different_numbers(workers: int) -> None:
    """Though all are seeded alike: no two items have the same, and the same seed gives them again."""

    def drawn() -> list[Any]:
        found = []
        for loader in prepared(lambda: DataLoader(Noisy(16), 2, num_workers=workers), 2):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            found += [item for batch in loader for item in numbers(batch)]
        return found

    torch.manual_seed(9)
    first = drawn()
    torch.manual_seed(9)
    assert drawn() == first
    for column in (1, 2, 3):
        assert len({item[column] for item in first}) == 16


def test_workers_of_a_stream_that_live_on() -> None:
    """Are given a base seed once: a run that is resumed between two passes draws the same afterwards."""

    def loader() -> PreparedLoader:
        return prepared(lambda: DataLoader(Stream(8), 4, num_workers=1, persistent_workers=True), 1)[0]

    torch.manual_seed(0)
    first = loader()
    list(first)
    state, rng = first.state_dict(), get_host_rng_state()
    list(first)
    expected = torch.rand(3)
    end(first)
    resumed = loader()
    resumed.load_state_dict(state)
    set_host_rng_state(rng)
    list(resumed)
    assert torch.equal(torch.rand(3), expected)
    end(resumed)


class LazyLoader(DataLoader[Any]):
    """Draws nothing before the first batch is asked for."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_loader_with_its_own_iteration(shards: int, workers: int) -> None:
    """Has the rest of the same order."""

    def make() -> DataLoader[Any]:
        return LazyLoader(Numbers(23), 4, shuffle=True, num_workers=workers)

    loader = prepared(make, shards, seed=1)[0]
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(map(numbers, batches))
    resumed = prepared(make, shards, seed=2)[0]
    resumed.load_state_dict(state)
    assert list(map(numbers, resumed)) == rest


class Late(Numbers):
    """The first item comes after those of the other worker's next two batches."""

    def __init__(self, items: int) -> None:
        super().__init__(items)
        self.later = multiprocessing.Event()

    def __getitem__(self, index: int) -> int:
        if index == 6:
            self.later.set()
        assert index or self.later.wait(60)
        return index


def test_batches_that_are_ready_before_others(caplog: pytest.LogCaptureFixture) -> None:
    """They wait for their turn, with a warning: a position is a number of batches."""
    make = partial(DataLoader, Late(12), 2, num_workers=2, in_order=False)
    loader, resumed = prepared(make, 1)[0], prepared(make, 1)[0]
    batches = iter(loader)
    seen = numbers(next(batches))
    resumed.load_state_dict(loader.state_dict())
    del batches
    assert seen + [item for batch in resumed for item in numbers(batch)] == [*range(12)]
    assert "handed out in order, in spite of in_order=False" in caplog.text


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: DataLoader(Noisy(30), 4, shuffle=True), lambda: DataLoader(Stream(30), 4), KINDS["no batches"]]
)
def test_dispatched_batches_are_resumed(make: Any, split: bool) -> None:
    """The reading process skips what was read, and the others wait for the rest."""
    if make is KINDS["no batches"]:
        if split:
            return
        make = partial(make, 30)
    settings = DataSettings(dispatch_batches=True, split_batches=split)

    def ids(batch: Any) -> list[int]:
        tensor = torch.as_tensor(batch)
        return [int(item) for item in (tensor[:, 0] if tensor.dim() == 2 else tensor.reshape(-1))]

    loaders = prepared(make, 2, seed=1, settings=settings)
    passes = [iter(loader) for loader in loaders]
    for one in passes:
        ids(next(one))
    states = [loader.state_dict() for loader in loaders]
    rest = [[ids(batch) for batch in one] for one in passes]
    resumed = prepared(make, 2, seed=2, settings=settings)
    for loader, state in zip(resumed, states, strict=True):
        loader.load_state_dict(state)
    assert [[ids(batch) for batch in loader] for loader in resumed] == rest


@pytest.mark.parametrize(
    ("items", "begun", "says"),
    [
        (30, False, []),
        (12, False, ["of length 30, and this data has length 12"]),
        (48, False, ["of length 30, and this data has length 48"]),
        (30, True, ["goes on where it is"]),
    ],
)
def test_a_position_that_does_not_fit_is_a_warning(
    items: int, begun: bool, says: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of other data, or loaded while a pass is under way."""
    loader, other = (prepared(partial(DataLoader, Numbers(count), 4), 1)[0] for count in (30, items))
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    running = iter(other) if begun else None
    other.load_state_dict(loader.state_dict())
    del running
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [one for one in says if any(one in message for message in messages)] == says
    assert len(messages) == len(says)
