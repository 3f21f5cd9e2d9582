"""Which loader the loop is in: the one that yielded the newest batch, until its pass ends."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from core.data import skip_first_batches

from .problem import runtime


class Stream(IterableDataset[int]):
    """Ten items, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def loaders(**options: Any) -> tuple[Any, Any, Any]:
    one = runtime()
    ten: DataLoader[int] = DataLoader(range(10), batch_size=4, **options)  # type: ignore[arg-type]
    six: DataLoader[int] = DataLoader(range(6), batch_size=3, **options)  # type: ignore[arg-type]
    first, second = one.prepare(ten, six)
    return one.gradient_state, first, second


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop(workers: int) -> None:
    """The loader is active inside its loop, and its last batch is known."""
    state, loader, _ = loaders(num_workers=workers)
    assert (state.in_dataloader, state.active_dataloader, state.end_of_dataloader) == (False, None, False)
    ends = []
    for _ in loader:
        assert state.active_dataloader is loader
        ends.append(state.end_of_dataloader)
    assert ends == [False, False, True]
    assert (state.in_dataloader, state.active_dataloader, state.end_of_dataloader) == (False, None, False)


def test_a_loop_without_a_length() -> None:
    """The last batch of a stream is known as well."""
    one = runtime()
    loader = one.prepare(DataLoader(Stream(), batch_size=4))
    assert [one.gradient_state.end_of_dataloader for _ in loader] == [False, False, True]


def test_a_loop_within_a_loop() -> None:
    """The inner loader is active until its loop ends or is left; then the outer one is."""
    state, outer, inner = loaders()
    seen = []
    for step, _ in enumerate(outer):
        for number, _ in enumerate(inner):
            assert state.active_dataloader is inner
            if number == step:
                break
        assert state.active_dataloader is outer
        seen.append(state.end_of_dataloader)
    assert seen == [False, False, True]
    assert not state.in_dataloader


def test_no_loop_that_was_left_stays_active() -> None:
    """Neither after ``break``, nor after an exception, nor behind ``enumerate``, ``zip`` or a generator."""
    state, first, second = loaders()
    for _ in first:
        break
    assert not state.in_dataloader
    for _ in enumerate(zip(first, second, strict=False)):
        assert state.active_dataloader is second
        break
    assert not state.in_dataloader
    for _ in (batch for batch in first):
        break
    assert not state.in_dataloader
    try:
        for _ in first:
            raise KeyError
    except KeyError:
        pass
    assert not state.in_dataloader


def test_iterators_that_are_kept() -> None:
    """Whichever yielded last; also two over one loader."""
    state, loader, _ = loaders()
    first, second = iter(loader), iter(loader)
    list(zip(range(3), first, strict=False))
    assert state.end_of_dataloader
    next(second)
    assert not state.end_of_dataloader
    del second
    assert state.end_of_dataloader
    assert next(first, None) is None
    assert not state.in_dataloader


def test_the_rest_of_a_pass() -> None:
    """A loader that skips batches is active itself."""
    state, loader, _ = loaders()
    skipping = skip_first_batches(loader, 1)
    assert [(state.active_dataloader is skipping, state.end_of_dataloader) for _ in skipping] == [
        (True, False),
        (True, True),
    ]


def test_a_runtime_that_is_sent_to_another_process() -> None:
    """Its state there is its own, and outside of all loops."""
    one = runtime()
    one.teardown()
    sent = pickle.loads(pickle.dumps(one))
    assert not sent.gradient_state.in_dataloader
    loader = sent.prepare(DataLoader(range(2)))  # type: ignore[arg-type]
    for _ in loader:
        assert sent.gradient_state.active_dataloader is loader
