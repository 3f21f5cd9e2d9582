"""Random configurations of sharding against plain torch in one process.

``SHARDING_CASES`` says how many are drawn: 5000 in a long run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Generator
from torch.utils.data import BatchSampler, DataLoader

from core.data import DataSettings

from .loaders import Numbers, Pairs, Reversed, SizedStream, Stream, flat, gathered, prepared

CASES = int(os.environ.get("SHARDING_CASES", "300"))
CHUNKS = 10


@attrs.frozen
class Case:
    """One configuration."""

    kind: str
    items: int
    batch: int
    drop_last: bool
    shuffle: bool
    generator: int | None
    seed: int
    shards: int
    even: bool
    split: bool
    evaluation: bool
    dispatch: bool

    @classmethod
    def draw(cls, number: int) -> Case:
        rng = random.Random(number)
        kind = rng.choice(["map", "map", "map", "batch sampler", "own batches", "no batches", "stream", "sized stream"])
        shards = rng.choice([1, 2, 2, 3, 4, 5])
        split = rng.random() < 0.3 and kind not in ("no batches", "own batches")
        shuffle = rng.random() < 0.5 and kind in ("map", "no batches")
        return cls(
            kind=kind,
            items=rng.choice([1, 2, 3, 5, 7, 8, 12, 13, 24, 34, rng.randint(1, 60)]),
            batch=rng.randint(1, 4) * shards if split else rng.randint(1, 9),
            drop_last=rng.random() < 0.3 and kind not in ("own batches", "no batches"),
            shuffle=shuffle,
            generator=rng.randrange(1000) if shuffle and rng.random() < 0.4 else None,
            seed=rng.randrange(1000),
            shards=shards,
            even=rng.random() < 0.7,
            split=split,
            evaluation=rng.random() < 0.5,
            dispatch=rng.random() < 0.3,
        )

    def loader(self, batch: int | None = None, drop_last: bool | None = None) -> DataLoader[Any]:
        """The user's own, also with another batch size."""
        size: Any = self.batch if batch is None else batch
        drop = self.drop_last if drop_last is None else drop_last
        generator = None if self.generator is None else Generator().manual_seed(self.generator)
        numbers = Numbers(self.items)
        makes: dict[str, Callable[[], DataLoader[Any]]] = {
            "map": lambda: DataLoader(numbers, size, shuffle=self.shuffle, drop_last=drop, generator=generator),
            "batch sampler": lambda: DataLoader(
                numbers, batch_sampler=BatchSampler(Reversed(self.items), size, drop_last=drop)
            ),
            "own batches": lambda: DataLoader(numbers, batch_sampler=Pairs(self.items)),
            "no batches": lambda: DataLoader(numbers, None, shuffle=self.shuffle, generator=generator),
            "stream": lambda: DataLoader(Stream(self.items), size, drop_last=drop),
            "sized stream": lambda: DataLoader(SizedStream(self.items), size, drop_last=drop),
        }
        return makes[self.kind]()

    def plain(self, **changed: Any) -> list[list[Any]]:
        """The batches of two passes of plain torch in one process."""
        torch.manual_seed(self.seed)
        loader = self.loader(**changed)
        return [list(loader) for _ in range(2)]


def check(case: Case) -> None:
    """Compare one configuration with the oracle."""
    settings = DataSettings(even_batches=case.even, split_batches=case.split, dispatch_batches=case.dispatch)
    whole = case.kind in ("own batches", "no batches")
    batches = case.plain()
    order = [flat(one) for one in (batches if whole else case.plain(drop_last=False))]
    loaders = prepared(case.loader, case.shards, seed=case.seed, evaluation=case.evaluation, settings=settings)
    for epoch in range(2):
        if case.even:
            found, sizes, lasts = steps(loaders)
            assert [item for step in found for item in step] == expected_items(case, order[epoch], batches[epoch])
            assert all(len(set(step)) == 1 for step in sizes) or case.kind == "own batches", "sizes differ"
            assert lasts == [False] * (len(found) - 1) + [True] * (len(found) > 0)
            assert sum(map(sum, sizes)) - sum(map(len, found)) < case.shards * (2 if case.kind == "own batches" else 1)
            counts = [len(found)] * case.shards
        else:
            by_shard = uneven(loaders)
            counts = [len(one) for one in by_shard]
            if case.split and case.shards > 1:
                kept = [flat([*step]) for step in zip(*by_shard, strict=False)]
                rest = [flat([one[len(kept)]]) for one in by_shard if len(one) > len(kept)]
                assert [item for part in (*kept, *rest) for item in part] == flat(batches[epoch])
            else:
                for shard, one in enumerate(by_shard):
                    assert [flat([b]) for b in one] == [flat([b]) for b in batches[epoch][shard :: case.shards]]
        if case.kind != "stream":
            assert [len(loader) for loader in loaders] == counts, "len() is not true"
        else:
            with pytest.raises(TypeError):
                len(loaders[0])


def steps(loaders: list[Any]) -> tuple[list[list[int]], list[list[int]], list[bool]]:
    """One pass side by side: what is gathered in each step without padding, the batches' sizes, which is the last."""
    sizes: list[list[int]] = []
    lasts: list[bool] = []

    def note(batches: list[Any]) -> None:
        sizes.append([len(flat([batch])) for batch in batches])
        (last,) = {loader.end_of_dataloader for loader in loaders}
        lasts.append(last)
        real = loaders[0].real_samples
        if real is not None and None not in real:
            assert loaders[0].remainder == sum(real)

    return gathered(loaders, note), sizes, lasts


def uneven(loaders: list[Any]) -> list[list[Any]]:
    """One pass side by side, where some have fewer batches."""
    passes = [iter(loader) for loader in loaders]
    found: list[list[Any]] = [[] for _ in loaders]
    while True:
        batches = [next(batches, None) for batches in passes]
        if all(batch is None for batch in batches):
            return found
        for one, batch in zip(found, batches, strict=True):
            if batch is not None:
                one.append(batch)


def expected_items(case: Case, order: list[int], batches: list[Any]) -> list[int]:
    """The items that are seen in a pass, in order."""
    if not case.drop_last or case.shards == 1 or case.split:
        return flat(batches)
    if case.evaluation:
        return flat(batches)
    complete = case.batch * case.shards
    return order[: len(order) // complete * complete]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_sharding(chunk: int) -> None:
    """Every item once and in the order of one process, padding marked, len() true, the same seeds the same order."""
    for number in range(chunk, CASES, CHUNKS):
        case = Case.draw(number)
        try:
            check(case)
        except Exception as error:
            raise AssertionError(f"case {number}: {case}: {error}") from error
