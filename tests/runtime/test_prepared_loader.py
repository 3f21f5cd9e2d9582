"""Loaders as prepare hands them back: shared out, moved, counting epochs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from core.errors import ConfigurationError, WrongTypeError
from core.runtime.loader import PreparedLoader, prepare_loader, set_epoch

from .loaders import KINDS, Numbers, OwnLoader, Reversed, flat, strategy


def test_each_pass_is_an_epoch() -> None:
    """A shuffling loader draws a new order for each pass, the same in each process, and can be told which is next."""
    loaders = [prepare_loader(KINDS["shuffled"](24), strategy(2, shard)) for shard in range(2)]
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


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_a_distributed_sampler_of_the_users_own(within: bool, evaluation: bool) -> None:
    """The loader is shared out already: it is left alone, and the epoch is the user's to set."""
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(12), num_replicas=3, rank=1, shuffle=True)
    own = DataLoader(Numbers(12), batch_size=2, sampler=sampler)
    if within:
        own = DataLoader(Numbers(12), batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    prepared = prepare_loader(own, strategy(3, 1), evaluation)
    assert prepared is own
    sampler.set_epoch(7)
    list(prepared)
    assert sampler.epoch == 7
    set_epoch(prepared, 2)
    assert sampler.epoch == 2


@pytest.mark.parametrize(("replicas", "rank"), [(2, 0), (4, 1), (3, 0)])
def test_a_distributed_sampler_for_other_processes(replicas: int, rank: int) -> None:
    """Would leave items out or take them twice: refused, with both."""
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(12), num_replicas=replicas, rank=rank)
    said = rf"num_replicas={replicas}, rank={rank}\): this is process 1 of 3. Valid: num_replicas=3, rank=1"
    with pytest.raises(ConfigurationError, match=said):
        prepare_loader(DataLoader(Numbers(12), sampler=sampler), strategy(3, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_on_the_host_keeps_its_loader(kind: str) -> None:
    """The very object."""
    own = KINDS[kind](5)
    assert prepare_loader(own, strategy(1, 0)) is own


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
    said = f"dataloaders: given {type(own).__name__}. Valid: a torch DataLoader, .* 2 processes"
    with pytest.raises(WrongTypeError, match=said):
        prepare_loader(own, strategy(2, 0))


def test_a_pass_may_be_left() -> None:
    """Whoever breaks out of a loop over one loader disturbs neither its next pass nor the passes over another."""
    own = KINDS["sequential"](24)
    train, held_out = prepare_loader(own, strategy(2, 0)), prepare_loader(own, strategy(2, 0), evaluation=True)
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
