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

from core.data.seeds import Apart, seed_host, seeded

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


def test_numpys_memory_of_a_mersenne_twister_is_what_is_compared() -> None:
    generator = np.random.MT19937(2)
    for count in (0, 1, 623, 624, 1249):
        generator.random_raw(count)
        memory = ctypes.string_at(generator.ctypes.state_address, 4 * 625)
        state = generator.state["state"]
        assert memory == state["key"].astype(np.uint32).tobytes() + np.int32(state["pos"]).tobytes()
