"""States of random number generators."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch

from core.accelerators import CPUAccelerator
from core.errors import ConfigurationError
from core.random import get_host_rng_state, get_rng_state, seed_everything, set_rng_state

CPU = torch.device("cpu")


def test_a_state_of_another_type_of_device_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A run that goes on elsewhere gets the host's generators back; the device's has another form, and is named."""
    accelerator = CPUAccelerator()
    state = {**get_rng_state(accelerator, CPU), "device": torch.zeros(8, dtype=torch.uint8), "device_type": "xla"}
    drawn = random.random(), torch.rand(2).tolist()
    set_rng_state(state, accelerator, CPU)
    assert (random.random(), torch.rand(2).tolist()) == drawn
    assert "generator of cpu was not restored: the state comes from a device of type 'xla'" in caplog.text


def test_a_state_of_the_same_type_is_put_back(caplog: pytest.LogCaptureFixture) -> None:
    """Everything is as it was, and nothing is logged."""
    accelerator = CPUAccelerator()
    state = get_rng_state(accelerator, CPU)
    drawn = torch.rand(2).tolist()
    set_rng_state(state, accelerator, CPU)
    assert torch.rand(2).tolist() == drawn
    assert not caplog.records


def test_a_seed_is_logged_on_request(caplog: pytest.LogCaptureFixture) -> None:
    """As in Lightning, where it is the default."""
    with caplog.at_level(logging.INFO):
        seed_everything(5)
        assert caplog.text == ""
        seed_everything(5, verbose=True)
    assert "the seed is 5" in caplog.text


def test_another_bit_generator_of_numpy_is_an_error_that_says_what_to_do() -> None:
    """Its state has other parts, and cannot be exchanged."""
    numpy_random: Any = np.random  # its annotations lack both functions
    before = numpy_random.get_bit_generator()
    numpy_random.set_bit_generator(np.random.PCG64(0))
    try:
        with pytest.raises(ConfigurationError, match=r"^numpy\.random draws from PCG64: .*numpy\.random\.Generator"):
            get_host_rng_state()
    finally:
        numpy_random.set_bit_generator(before)
