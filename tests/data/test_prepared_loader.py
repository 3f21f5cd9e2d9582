"""Loaders as prepare hands them back: shared out, moved, counting epochs."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Sampler, Subset

from core.data import PreparedLoader, prepare_loader, set_epoch, workers
from core.errors import ConfigurationError, WrongTypeError

from .loaders import KINDS, Numbers, OwnLoader, Pairs, Reversed, SizedStream, Stream, flat, prepared, strategy


def test_each_pass_is_an_epoch() -> None:
    """A shuffling loader draws a new order for each pass, the same in each process, and can be told which is next."""
    loaders = prepared(lambda: KINDS["shuffled"](24), 2)
    first, second = ([flat(list(loader)) for loader in loaders] for _ in range(2))
    assert sorted(first[0] + first[1]) == sorted(second[0] + second[1]) == list(range(24))
    assert first != second
    for loader in loaders:
        set_epoch(loader, 0)
    assert [flat(list(loader)) for loader in loaders] == first
    assert [flat(list(loader)) for loader in loaders] == second


class Epochal(Reversed):
    """A sampler of the user's own that orders by epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_samplers_own_set_epoch_is_called() -> None:
    """With the number of the pass."""
    sampler = Epochal(8)
    prepared = prepare_loader(DataLoader(Numbers(8), sampler=sampler), strategy(2, 1))
    for epoch in range(3):
        list(prepared)
        assert sampler.epoch == epoch


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("make", [Numbers, Stream, SizedStream])
def test_set_epoch_is_there_for_every_number_of_processes(make: Any, shards: int) -> None:
    """And is called by each pass: data sets that order by epoch are told."""

    class Epochal(make):  # type: ignore[misc]
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    dataset = Epochal(8)
    loader = prepared(lambda: DataLoader(dataset, batch_size=2), shards)[0]
    for epoch in range(2):
        list(loader)
        assert (dataset.epoch, loader.epoch) == (epoch, epoch + 1)
    loader.set_epoch(7)
    list(loader)
    assert (dataset.epoch, loader.epoch) == (7, 8)


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_a_distributed_sampler_of_the_users_own(within: bool, evaluation: bool) -> None:
    """The loader is not sharded again; its sampler is told each epoch, unless the user does so."""
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(12), num_replicas=3, rank=1, shuffle=True)
    own = DataLoader(Numbers(12), batch_size=2, sampler=sampler)
    if within:
        own = DataLoader(Numbers(12), batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    prepared = prepare_loader(own, strategy(3, 1), evaluation=evaluation)
    for epoch in range(2):
        assert flat(list(prepared)) == [*sampler]
        assert (sampler.epoch, len(prepared)) == (epoch, 2)
    sampler.set_epoch(7)
    list(prepared)
    assert sampler.epoch == 7
    set_epoch(prepared, 2)
    list(prepared)
    assert sampler.epoch == 2


def test_data_that_the_user_has_sharded() -> None:
    """Each process reads all of what it is given, a DataLoader's or any iterable's."""
    for own in ([torch.ones(2)] * 3, DataLoader(Numbers(5), 2), DataLoader(Stream(5), 2)):
        loader = prepare_loader(own, strategy(2, 1), sharded=True)
        assert len(list(loader)) == 3


@pytest.mark.parametrize(("replicas", "rank"), [(2, 0), (4, 1), (3, 0)])
def test_a_distributed_sampler_for_other_processes(replicas: int, rank: int) -> None:
    """Would leave items out or take them twice: refused, with both."""
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(12), num_replicas=replicas, rank=rank)
    said = rf"num_replicas={replicas}, rank={rank}\): this is process 1 of 3. Give it 3 and 1"
    with pytest.raises(ConfigurationError, match=said):
        prepare_loader(DataLoader(Numbers(12), sampler=sampler), strategy(3, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_on_the_host_reads_as_plain_torch(kind: str) -> None:
    """The same batches, its own data set and samplers; and what is prepared may be prepared again."""
    own = KINDS[kind](5)
    loader = prepare_loader(own, strategy(1, 0))
    torch.manual_seed(0)
    expected = list(KINDS[kind](5))
    torch.manual_seed(0)
    assert flat(list(loader)) == flat(expected)
    assert (loader.dataset, loader.sampler, loader.batch_sampler) == (own.dataset, own.sampler, own.batch_sampler)
    assert prepare_loader(loader, strategy(1, 0)) is loader


class Holds:
    """No DataLoader, and without a length, but has one that it is read by."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_batch_is_lost_where_only_reading_on_tells_which_is_the_last(num_workers: int) -> None:
    """Also where the user's object hands out the iterator of a DataLoader, which is read without a step between."""
    own = DataLoader(Numbers(9), 2, num_workers=num_workers)
    loader = prepare_loader(Holds(own), strategy(1, 0))
    read = [(flat([batch]), loader.end_of_dataloader) for batch in loader]
    assert [batch for batch, _ in read] == [flat([batch]) for batch in own]
    assert [is_last for _, is_last in read] == [False] * 4 + [True]


@pytest.mark.parametrize("own", [[torch.ones(2)], DataLoader([torch.ones(2)], batch_size=None)])  # type: ignore[arg-type]
def test_batches_are_moved_to_the_device(own: Any) -> None:
    """Of any iterable, with all tensors in their structure; the user's own stay where they are."""
    prepared = prepare_loader([{"x": batch, "name": "kept"} for batch in own], strategy(1, 0, "meta"))
    assert isinstance(prepared, PreparedLoader)
    for _ in range(2):
        (batch,) = prepared
        assert batch["x"].device.type == "meta"
        assert batch["name"] == "kept"
    assert len(prepared) == 1
    direct = prepare_loader(own, strategy(1, 0, "meta"))
    assert [batch.device.type for batch in direct] == ["meta"]
    assert next(iter(own)).device.type == "cpu"


@pytest.mark.parametrize("own", [[torch.ones(2)], (batch for batch in [1, 2])])
def test_only_a_data_loader_can_be_shared_out(own: Any) -> None:
    """Among several processes anything else is refused, rather than given to each whole."""
    said = f"dataloaders: {type(own).__name__} cannot be sharded among 2 processes. Pass a torch DataLoader"
    with pytest.raises(WrongTypeError, match=said):
        prepare_loader(own, strategy(2, 0))


def test_a_pass_may_be_left() -> None:
    """Whoever breaks out of a loop over one loader disturbs neither its next pass nor the passes over another."""
    own = KINDS["sequential"](24)
    train, held_out = prepared(lambda: own, 2)[0], prepared(lambda: own, 2, evaluation=True)[0]
    expected = [flat(list(train)), flat(list(held_out))]
    for _ in range(2):
        batches = iter(train)
        next(batches)
        for _ in held_out:
            break
        assert len(list(batches)) == 2
        assert [flat(list(train)), flat(list(held_out))] == expected


def test_a_prepared_loader_passes_for_the_users() -> None:
    """Its length and attributes are those of the loader that it goes through."""
    prepared = prepare_loader(OwnLoader(Numbers(9), batch_size=2, label="mine"), strategy(2, 0))
    assert len(prepared) == 3
    assert (prepared.label, prepared.batch_size) == ("mine", 2)
    with pytest.raises(AttributeError):
        prepared.no_such_thing  # noqa: B018


class Told(Numbers):
    """Items with the epoch of the copy that they come from, a random number of its process, and which that is."""

    epoch: Any = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return int(self.epoch), float(torch.rand(())), os.getpid()


class ToldStream(Told, IterableDataset[Any]):
    """The same as a stream."""

    def __iter__(self) -> Any:
        return map(self.__getitem__, Stream(self.items))


class Shared(Told):
    """One that keeps its epoch where the workers see it."""

    def __init__(self, items: int) -> None:
        super().__init__(items)
        self._epoch = multiprocessing.Value("q", -1)

    @property
    def epoch(self) -> Any:
        return self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        self._epoch.value = epoch


@pytest.mark.parametrize(
    ("make", "shards", "stay"),
    [
        (lambda: Told(8), 1, False),
        (lambda: Told(8), 2, False),
        (lambda: Subset(Told(8), range(8)), 1, False),
        (lambda: ToldStream(8), 1, False),
        (lambda: ToldStream(8), 2, False),
        (lambda: Shared(8), 1, True),
    ],
    ids=["map", "shared out", "subset", "stream", "stream shared out", "epoch in shared memory"],
)
def test_workers_that_persist_hear_of_the_epoch(
    make: Any, shards: int, stay: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each epoch would have the first one's augmentation or order; what it costs is said."""
    with caplog.at_level(logging.WARNING):
        loader = prepared(lambda: DataLoader(make(), 2, num_workers=1, persistent_workers=True), shards)[0]
    assert ("starts its workers again" in caplog.text) == (not stay)
    passes = [[tuple(map(torch.Tensor.tolist, batch)) for batch in loader] for _ in range(3)]
    assert [{epoch for epochs, _, _ in batches for epoch in epochs} for batches in passes] == [{0}, {1}, {2}]
    drawn = [tuple(number for _, numbers, _ in batches for number in numbers) for batches in passes]
    assert len(set(drawn)) == 3
    assert len({pid for batches in passes for _, _, pids in batches for pid in pids}) == (1 if stay else 3)
    loader.set_epoch(7)
    assert {epoch for epochs, _, _ in loader for epoch in epochs.tolist()} == {7}


class Roughly(Pairs):
    """Says how many batches it has, give or take some."""

    def __init__(self, items: int, error: int) -> None:
        super().__init__(items)
        self.error = error

    def __len__(self) -> int:
        return super().__len__() + self.error


@pytest.mark.parametrize(("error", "workers"), [(-2, 0), (2, 0), (3, 2), (0, 0)])
def test_a_length_that_is_not_exact_is_named(error: int, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    """As of a sampler that packs: the end of an epoch, and of accumulation, is where the length says."""
    loader = DataLoader(Numbers(18), batch_sampler=Roughly(18, error), num_workers=workers)
    with caplog.at_level(logging.WARNING):
        assert flat(list(prepare_loader(loader, strategy(1, 0)))) == list(range(18))
    found = [record.message for record in caplog.records]
    assert len(found) == bool(error)
    assert all(f"had 9 batch(es), and its length is {9 + error}" in message for message in found)


class GoesOn(Sampler[int]):
    """Repeats its items after its length."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        return cycle(range(12))


@pytest.mark.parametrize("rank", [0, 1])
def test_data_that_goes_on_is_divided_up_to_its_length(rank: int) -> None:
    loader = DataLoader(Numbers(12), batch_size=2, sampler=GoesOn())
    assert flat(list(prepare_loader(loader, strategy(2, rank)))) == [n for n in range(12) if n // 2 % 2 == rank]


class Endless(Sampler[Any]):
    """Repeats a batch sampler, as in the loaders of timm and Ultralytics, and like there has no length."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        while True:
            yield from self.sampler


class BegunEarly(DataLoader[Any]):
    """Keeps an iterator from its constructor on, so that workers live on after a pass."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        return (next(self.iterator) for _ in range(len(self)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_has_begun_before_it_is_prepared(workers: int) -> None:
    """Reads as in plain torch on one process; on several, or resumed, it would read the whole data from the start."""
    loader = prepare_loader(BegunEarly(Numbers(6), batch_size=2, num_workers=workers), strategy(1, 0))
    assert [flat(list(loader)) for _ in range(2)] == [list(range(6))] * 2
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    loader.load_state_dict(state)
    for one in (loader, prepare_loader(BegunEarly(Numbers(6), batch_size=2, num_workers=workers), strategy(2, 0))):
        with pytest.raises(ConfigurationError, match="BegunEarly takes its batches from an iterator that it began"):
            next(iter(one))


class BegunStream(DataLoader[Any]):
    """The same over iterable data. If ``begins`` is true, each pass starts a new iterator."""

    begins = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        return (batch for batch in (super().__iter__() if self.begins else self.iterator))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_has_begun_before_it_is_prepared(workers: int) -> None:
    """It is an error on several processes, unless each pass starts a new iterator or the data is already divided."""

    def read(shards: int, begins: bool = False, **options: Any) -> list[int]:
        loader = BegunStream(Stream(8), batch_size=2, num_workers=workers)
        loader.begins = begins
        return flat(list(prepare_loader(loader, strategy(shards, 0), **options)))

    assert read(1) == read(2, sharded=True) == list(range(8))
    assert read(2, begins=True) == [0, 1, 4, 5]
    with pytest.raises(ConfigurationError, match="BegunStream takes its batches from an iterator that it began"):
        read(2)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_stream_is_read_when_the_loop_asks_for_it(shards: int) -> None:
    """Data that acts with the newest weights is read after the step before, as with plain torch."""
    events: list[str] = []

    class Acting(IterableDataset[int]):
        def __iter__(self) -> Any:
            for item in range(3 * shards):
                events.append("read")
                yield item

    for _ in prepare_loader(DataLoader(Acting(), batch_size=1), strategy(shards, 0)):
        events.append("step")
    assert events == [*["read"] * shards, "step"] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_worker_whose_fork_hangs_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Python 3.11 before 3.11.10, where a fork may wait for a lock that no thread of it can give up."""
    forked: list[int] = []
    fork = os.fork

    def hanging() -> int:
        process = fork()
        if process == 0 and not forked:
            while True:
                signal.pause()
        forked.append(process)
        return process

    monkeypatch.setattr(workers, "_MAY_HANG", True)
    monkeypatch.setattr(workers, "_fork", hanging)
    monkeypatch.setattr(workers, "FORK_SECONDS", 1.0)
    loader = prepare_loader(DataLoader(Numbers(8), num_workers=2, multiprocessing_context="fork"), strategy(1, 0))
    with caplog.at_level(logging.WARNING, "core"):
        assert flat(list(loader)) == [*range(8)]
    assert len(forked) >= 3, "multiprocessing no longer calls os.fork"
    assert "has not begun in 1 s, and was started again" in caplog.text
    assert os.fork is fork
    with pytest.raises(ProcessLookupError):
        os.kill(forked[0], 0)
