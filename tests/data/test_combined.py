"""Several loaders as one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core.data import CombinedLoader, PreparedCombined, PreparedLoader, prepare_loader, skip_first_batches
from core.errors import CheckpointError, ConfigurationError, WrongTypeError
from core.random import get_host_rng_state, set_host_rng_state

from .loaders import Numbers, strategy
from .loaders import prepared as prepared_by_each

MODES = ("min_size", "max_size_cycle", "max_size", "sequential")


def letters(text: str) -> list[str]:
    return list(text)


A, B, C = "abcde", "xy", "123"

EXPECTED: dict[str, list[Any]] = {
    "min_size": list(zip(A, B, C, strict=False)),
    "max_size": list(itertools.zip_longest(A, B, C)),
    "max_size_cycle": list(zip(A, itertools.cycle(B), itertools.cycle(C), strict=False)),
}


@pytest.mark.parametrize("mode", EXPECTED)
def test_batches_of_each_loader(mode: Any) -> None:
    """In the structure that was given, as itertools combines them; with the number of the batch."""
    structure: Any = {"a": letters(A), "nested": (DataLoader(letters(B), batch_size=None), letters(C))}  # type: ignore[arg-type]
    combined = CombinedLoader(structure, mode)
    for _ in range(2):
        assert [
            ((batch["a"], *batch["nested"]), batch_idx, dataloader_idx) for batch, batch_idx, dataloader_idx in combined
        ] == [(batch, number, 0) for number, batch in enumerate(EXPECTED[mode])]
    assert len(combined) == len(EXPECTED[mode])


def test_one_after_another() -> None:
    """Each batch with its number in its loader, and the loader's."""
    combined = CombinedLoader([letters(B), letters(C)], "sequential")
    assert list(combined) == [("x", 0, 0), ("y", 1, 0), ("1", 0, 1), ("2", 1, 1), ("3", 2, 1)]
    assert len(combined) == 5


def test_wrong_arguments() -> None:
    """Each error names what was given."""
    with pytest.raises(ConfigurationError, match=r"mode=.longest.: unknown\. Valid: .min_size"):
        CombinedLoader([letters(A)], "longest")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has no loader"):
        CombinedLoader({})
    with pytest.raises(WrongTypeError, match="int is not a loader"):
        CombinedLoader([letters(A), 3])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(11) + 300)


def prepared(mode: Any, seed: int, limits: list[float] | None = None) -> PreparedCombined:
    """Three loaders that shuffle, with 5, 3 and 4 batches; the last one is a stream."""
    torch.manual_seed(seed)
    alone = strategy(1, 0)

    def rows(start: int, items: int, **options: Any) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.arange(items) + start), batch_size=3, **options)

    loaders = {
        "own": rows(0, 14, shuffle=True),
        "short": rows(100, 9, shuffle=True, generator=torch.Generator().manual_seed(2)),
        "stream": DataLoader(Stream(), batch_size=3),
    }

    def prepare(loader: Any) -> PreparedLoader:
        return prepare_loader(loader, alone)

    found = PreparedCombined(CombinedLoader(loaders, mode), prepare)
    if limits is not None:
        found.limits = limits
    return found


def plain(batch: Any) -> Any:
    """``batch`` with lists in the place of tensors."""
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    return batch[0].tolist() if isinstance(batch, list) else None if batch is None else batch.tolist()


@pytest.mark.parametrize("limits", [None, [4, 2, 3]])
@pytest.mark.parametrize("mode", MODES)
def test_a_position_in_any_pass_continues_exactly(mode: Any, limits: list[float] | None) -> None:
    """The rest of the pass and the next one are those of the run that went on, from any batch."""
    whole = prepared(mode, 1, limits)
    states, batches, rngs = [], [], []
    for epoch in range(2):
        whole.set_epoch(epoch)
        is_known = limits is not None or mode == "min_size"  # the stream's length is not
        expected_length = whole.batches_left if is_known else None
        states.append(whole.state_dict())
        rngs.append(torch.get_rng_state())
        of_epoch = 0
        for batch in whole:
            batches.append((epoch, plain(batch)))
            states.append(whole.state_dict())
            rngs.append(torch.get_rng_state())
            of_epoch += 1
            assert whole.batches_taken == of_epoch
        assert of_epoch == expected_length or not is_known
    for number, (state, rng) in enumerate(zip(states, rngs, strict=True)):
        again = prepared(mode, 7, limits)
        again.load_state_dict(state)
        found = []
        for epoch in range(state["epoch"], 2):
            again.set_epoch(epoch)
            if epoch == state["epoch"]:
                torch.set_rng_state(rng)
            found += [(epoch, plain(batch)) for batch in again]
        assert found == batches[len(batches) - len(found) :], number
        left = len(batches) // 2 - state["taken"]
        assert len(found) == left + (0 if state["epoch"] else len(batches) // 2), number


def test_a_cycled_loader_has_another_order_each_time() -> None:
    """It is not the same few batches in the same order."""
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=64, shuffle=True)
    long: Any = list(range(4))
    alone = strategy(1, 0)
    combined = PreparedCombined(
        CombinedLoader([loader, long], "max_size_cycle"), lambda part: prepare_loader(part, alone)
    )
    combined.set_epoch(0)
    orders = {tuple(batch[0][0].tolist()) for batch in combined}
    assert len(orders) == 4


def test_a_state_of_other_loaders() -> None:
    """Refused."""
    state = prepared("min_size", 1).state_dict()
    state["loaders"].pop()
    with pytest.raises(CheckpointError, match="is not one of 3 loader"):
        prepared("min_size", 1).load_state_dict(state)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("shards", "workers"), [(1, 0), (1, 2), (2, 0)])
def test_two_loaders_that_are_read_together(shared: bool, shards: int, workers: int) -> None:
    """In one loop, as by zip: each draws its order from the generator that both share, and continues in that order."""

    def build() -> list[PreparedLoader]:
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(3) if shared else None
        makes = [
            partial(DataLoader, Numbers(items), 2, shuffle=True, generator=generator, num_workers=workers)
            for items in (23, 29)
        ]
        return [prepared_by_each(make, shards)[-1] for make in makes]

    loaders = build()
    passes: list[list[Any]] = []
    for _ in range(2):
        passes.append([])
        for number, pair in enumerate(zip(*loaders, strict=False)):
            passes[-1].append([batch.tolist() for batch in pair])
            if number == 2:
                states, rng = [loader.state_dict() for loader in loaders], get_host_rng_state()
    whole = passes[1][3:]
    loaders = build()
    for loader, state in zip(loaders, states, strict=True):
        loader.load_state_dict(state)
    set_host_rng_state(rng)
    assert [[batch.tolist() for batch in pair] for pair in zip(*loaders, strict=False)] == whole
    skipped = [skip_first_batches(loader, 3) for loader in build()]
    assert [[batch.tolist() for batch in pair] for pair in zip(*skipped, strict=False)] == passes[0][3:]
