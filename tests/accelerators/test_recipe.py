"""Hardware from outside: the custom accelerator of the founding documents, and a device with no accelerator at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import RunSimulated

_SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.slow
def test_custom_accelerator_on_two(run_simulated: RunSimulated) -> None:
    """Five plain functions are an accelerator; ``devices=2`` trains on both devices, over the vendor's collectives."""
    output = run_simulated(_SCRIPTS / "recipe_by_instance.py")
    assert "rank 0 of 2: trained on simx:0" in output
    assert "rank 1 of 2: trained on simx:1" in output


@pytest.mark.slow
def test_custom_accelerator_on_one(run_simulated: RunSimulated) -> None:
    """By the name that it registers itself under, or by instance, it trains on any one device it is told."""
    assert "trained by name" in run_simulated(_SCRIPTS / "recipe_by_name.py")


def test_no_plugin_on_one(run_simulated: RunSimulated) -> None:
    """A device type that torch reports is an accelerator by its own name, is ``auto``'s choice, and autocasts."""
    assert "trained with no plugin" in run_simulated(_SCRIPTS / "neutral_one.py")


@pytest.mark.slow
def test_no_plugin_on_two(run_simulated: RunSimulated) -> None:
    """Without any argument, training takes all its devices, and their own collective backend."""
    output = run_simulated(_SCRIPTS / "neutral_two.py")
    assert "rank 0 of 2: trained on simx:0" in output
    assert "rank 1 of 2: trained on simx:1" in output
