"""Random numbers that data draws apart from those of the rest of the process."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from core.data.seeds import Apart, replayed, seed_host, seeded
from core.random import get_host_rng_state, set_host_rng_state

from .loaders import prepared

GLOBAL: Any = np.random


def draw() -> list[float]:
    """One number of each generator; NumPy and Python keep the second one of a normal pair."""
    host = [random.random(), random.gauss(), float(torch.rand(())), float(torch.randn(()))]
    return [*host, float(np.random.rand()), float(np.random.randn())]


@pytest.fixture(autouse=True)
def numpy_as_before() -> Iterator[None]:
    generator = GLOBAL.get_bit_generator()
    yield
    GLOBAL.set_bit_generator(generator)


@pytest.mark.parametrize("within", [lambda: None, draw, np.random.randn, lambda: np.random.seed(3)])
@pytest.mark.parametrize("outside", [draw, np.random.randn, lambda: np.random.standard_normal(3), np.random.rand])
@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64])
def test_the_rest_of_the_process_draws_what_it_draws_without(
    within: Callable[[], Any], outside: Callable[[], Any], generator: Any
) -> None:
    def numbers(is_plain: bool) -> list[Any]:
        GLOBAL.set_bit_generator(generator(5))
        random.seed(5)
        torch.manual_seed(5)
        apart = Apart(goes_on=True)
        drawn = []
        for number in range(5):
            drawn.append(outside())
            for separate in (seeded(number), apart, seeded(number)):
                with nullcontext() if is_plain else separate:
                    if not is_plain:
                        within()
        return [*drawn, draw()]

    np.testing.assert_equal(numbers(is_plain=False), numbers(is_plain=True))


def test_what_is_drawn_within_depends_on_the_seed_alone() -> None:
    seed_host(7)
    expected = [draw() for _ in range(3)]
    for _ in range(3):
        np.random.randn()
        with seeded(1), seeded(7):
            assert [draw() for _ in range(3)] == expected


def test_what_goes_on_draws_what_it_draws_in_one_piece() -> None:
    seed_host(7)
    expected = [draw() for _ in range(4)]
    apart, drawn = Apart(goes_on=True), []
    for number in range(4):
        with apart:
            if number == 0:
                seed_host(7)
            drawn.append(draw())
        draw()
        with seeded(3):
            draw()
    assert drawn == expected


def test_a_state_without_numpys_leaves_numpy_its_own() -> None:
    """As that of a checkpoint from before NumPy was imported."""
    seed_host(7)
    state = {name: value for name, value in get_host_rng_state().items() if name != "numpy"}
    expected = draw()
    seed_host(8)
    of_numpy = draw()[-2:]
    seed_host(8)
    with replayed(state):
        assert draw() == [*expected[:-2], *of_numpy]
    assert draw()[-2:] == of_numpy


def test_an_error_in_a_divided_stream_leaves_the_generators_as_they_were() -> None:
    class Failing(IterableDataset[float]):
        def __iter__(self) -> Iterator[float]:
            for _ in range(6):
                yield sum(draw())
            raise OSError("the file ends here")

    seed_host(7)
    batches = iter(prepared(lambda: DataLoader(Failing(), batch_size=2), 2)[0])
    next(batches)
    state = get_host_rng_state()
    with pytest.raises(OSError, match="the file ends here"):
        list(batches)
    expected = draw()
    set_host_rng_state(state)
    assert draw() == expected


def test_numpys_memory_of_a_mersenne_twister_is_what_is_compared() -> None:
    generator = np.random.MT19937(2)
    for count in (0, 1, 623, 624, 1249):
        generator.random_raw(count)
        memory = ctypes.string_at(generator.ctypes.state_address, 4 * 625)
        state = generator.state["state"]
        assert memory == state["key"].astype(np.uint32).tobytes() + np.int32(state["pos"]).tobytes()
