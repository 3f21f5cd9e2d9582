"""Data that can be read once only: the pass after that is an error, and not an epoch without batches.

And data of which each pass has another part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from core.data import DataSettings, PreparedLoader, skip_first_batches, streams
from core.errors import ConfigurationError

from .loaders import Numbers, Reversed, SizedStream, Stream, flat, prepared
from .test_position import end as end_workers

ITEMS = 12
USED_UP = r"has no batch, and a pass before had some\. It must yield batches each time it is iterated"


class Once(IterableDataset[int]):
    """A stream that is its own iterator, and so is never begun again; workers divide it."""

    def __init__(self, items: int) -> None:
        self.items, self.read = items, 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        item, self.read = first + self.read * step, self.read + 1
        if item >= self.items:
            raise StopIteration
        return item


class SizedOnce(Once):
    """Says how many items it has."""

    def __len__(self) -> int:
        return self.items


class OnceSampler(Reversed):
    """A sampler that keeps its iterator."""

    def __init__(self, items: int) -> None:
        super().__init__(items)
        self.iterator = super().__iter__()

    def __iter__(self) -> Iterator[int]:
        return self.iterator


class Batches:
    """No DataLoader: keeps its iterator."""

    def __init__(self) -> None:
        self.iterator = iter([[0, 1], [2, 3]])

    def __iter__(self) -> Iterator[list[int]]:
        return self.iterator


def is_over(loader: PreparedLoader) -> None:
    """The next pass is the error, as is each that follows."""
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=USED_UP):
            list(loader)


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("dispatch", [False, True], ids=["divided", "read by process 0"])
@pytest.mark.parametrize(("make", "workers"), [(Once, 0), (SizedOnce, 0), (Once, 2)])
def test_a_stream_that_is_used_up(make: Callable[[int], Any], workers: int, dispatch: bool, shards: int) -> None:
    """In every process; workers that each pass starts have a copy, which is not used up."""

    def loader(stays: bool) -> list[PreparedLoader]:
        return prepared(
            lambda: DataLoader(make(ITEMS), 2, num_workers=workers, persistent_workers=stays),
            shards,
            settings=DataSettings(dispatch_batches=dispatch),
        )

    loaders = loader(stays=workers > 0)
    assert {item for one in loaders for item in flat(list(one))} == set(range(ITEMS))
    for one in loaders:
        is_over(one)
        end_workers(one)
    if workers:
        one = loader(stays=False)[0]
        assert flat(list(one)) == flat(list(one)) != []


@pytest.mark.parametrize(
    "make",
    [Batches, lambda: DataLoader(Once(ITEMS), None), lambda: DataLoader(Numbers(ITEMS), sampler=OnceSampler(ITEMS))],
    ids=["no DataLoader", "without batches", "sampler"],
)
@pytest.mark.parametrize("evaluation", [False, True])
def test_whatever_is_used_up(make: Callable[[], Any], evaluation: bool) -> None:
    """Also after a pass that was left: the next one has the rest, and the one after it nothing."""
    loader = prepared(make, 1, evaluation=evaluation)[0]
    for _ in loader:
        break
    assert list(loader)
    is_over(loader)


def test_an_empty_pass_that_is_right() -> None:
    """Of data that says so, or has had no batch so far, or of which all batches are skipped."""
    stream: Any = SizedStream(ITEMS)
    loader = prepared(lambda: DataLoader(stream, 4), 1)[0]
    assert len(list(loader)) == 3
    for _ in range(2):
        assert list(skip_first_batches(loader, 3)) == list(skip_first_batches(loader, 5)) == []
    stream.items = 0
    assert list(loader) == list(loader) == []
    none = prepared(lambda: DataLoader(Stream(0), 4), 1)[0]
    assert list(none) == list(none) == []


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("dispatch", [False, True], ids=["divided", "read by process 0"])
@pytest.mark.parametrize("same", [False, True], ids=["another loader", "the same loader"])
def test_a_state_after_the_last_batch(same: bool, dispatch: bool, shards: int) -> None:
    """Nothing is left of that pass, and the next one is whole."""

    def make() -> list[PreparedLoader]:
        settings = DataSettings(dispatch_batches=dispatch)
        return prepared(lambda: DataLoader(Stream(ITEMS), 2), shards, settings=settings)

    loaders = make()
    states = [[one.state_dict() for _ in one][-1] for one in loaders]
    resumed = loaders if same else make()
    for one, state in zip(resumed, states, strict=True):
        one.load_state_dict(state)
    assert [list(one) for one in resumed] == [[]] * shards
    assert {item for one in resumed for item in flat(list(one))} == set(range(ITEMS))


@pytest.mark.parametrize("dispatch", [False, True], ids=["divided", "read by process 0"])
def test_a_process_without_a_batch(dispatch: bool) -> None:
    """With uneven batches one may have none in a pass that has some."""
    stream = Stream(8)
    loaders = prepared(
        lambda: DataLoader(stream, 2), 2, settings=DataSettings(dispatch_batches=dispatch, even_batches=False)
    )
    assert [len(list(one)) for one in loaders] == [2, 2]
    stream.items = 2
    assert [len(list(one)) for one in loaders] == [1, 0]


class Continued(IterableDataset[int]):
    """Keeps its iterator, by itself or within a generator of each pass; or begins by the number of the pass."""

    def __init__(self, how: str) -> None:
        self.how, self.epoch, self.iterator = how, 0, itertools.count()

    def __iter__(self) -> Iterator[int]:
        if self.how == "itself":
            return self.iterator
        return (item for item in self.iterator) if self.how == "within" else itertools.count(12 * self.epoch)


class Told(Continued):
    """Is told the number of the pass."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("dispatch", [False, True], ids=["divided", "read by process 0"])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("how", ["itself", "within", "by number"])
def test_a_stream_that_goes_on_in_each_pass(
    how: str, shards: int, dispatch: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run would begin it at the start: a warning in the second pass, and where that is continued.

    One that begins by the number of the pass is resumed.
    """
    monkeypatch.setattr(streams.logger, "_warned", set())

    def make() -> list[PreparedLoader]:
        kind, settings = Told if how == "by number" else Continued, DataSettings(dispatch_batches=dispatch)
        return prepared(lambda: DataLoader(kind(how), 2), shards, settings=settings)

    def take(loaders: list[PreparedLoader], batches: int) -> list[int]:
        passes = [iter(loader) for loader in loaders]
        found = [flat([next(one)]) for _ in range(batches) for one in passes]
        states[:] = [loader.state_dict() for loader in loaders]
        return list(itertools.chain(*found))

    def said() -> list[bool]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [any(part in message for message in messages) for part in ("keeps its iterator", "begins with another")]

    states: list[dict[str, Any]] = []
    whole, resumed = make(), make()
    take(whole, 3)
    assert said() == [False, False]
    take(whole, 2)
    assert said() == [how == "itself", False]
    for loader, state in zip(resumed, states, strict=True):
        loader.load_state_dict(state)
    found = take(resumed, 1)
    assert said() == [False, how != "by number"]
    assert found == list(range(12 + 4 * shards, 12 + 6 * shards)) or how != "by number"
