"""A vendor's torch backend alone, with no plugin for core: its cards are trained on all the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from python_processes import run_python

from .conftest import Install

_SCRIPT = Path(__file__).parent / "torch-hal-acme" / "tests" / "scripts" / "neutral.py"


@pytest.mark.parametrize(("devices", "precision"), [(1, "32-true"), (1, "bf16-mixed"), (2, "32-true")])
def test_cards_without_a_plugin(install: Install, tmp_path: Path, devices: int, precision: str) -> None:
    """``auto`` picks the cards; autocast, collectives and losses are those of the cards' own backend."""
    env = {**install("torch-acme"), "ACME_DEVICES": "2"}
    done = run_python(_SCRIPT, devices, precision, cwd=tmp_path, env=env)
    # Where Python does not buffer, a line and its end are written apart, and another process may write between.
    assert sorted(re.findall(r"process \d equal", done.stdout)) == [f"process {rank} equal" for rank in range(devices)]
