"""Strategies of the user's, as the founding documents write them, on two processes each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import RunScript


@pytest.mark.slow
def test_overriding_how_ddp_wraps(run_script: RunScript) -> None:
    """A subclass that wraps with its own options, by ``super`` or itself, trains to the bits of the named one."""
    output = run_script("custom_strategy.py", "wrap")
    assert sorted(re.findall(r"rank \d trained with each", output)) == [f"rank {n} trained with each" for n in (0, 1)]


@pytest.mark.slow
def test_resuming_with_a_checkpoint_format_of_the_user_s(run_script: RunScript, tmp_path: Path) -> None:
    """A strategy registered with the format: rank 0 writes one file an epoch, and a run resumed from it is exact."""
    output = run_script("custom_strategy.py", "resume")
    assert sorted(re.findall(r"rank \d resumed", output)) == ["rank 0 resumed", "rank 1 resumed"]
    assert (tmp_path / "writers").read_text().split() == ["0"] * 8
    written = sorted(path.name for path in (tmp_path / "epochs-2" / "checkpoints" / "version_0").iterdir())
    assert written == ["epoch=1-step=8.ckpt"]


def test_a_registered_strategy_that_spawns(run_script: RunScript) -> None:
    """Registered with another way of starting processes: parameters and callbacks are handed back to who asked."""
    assert "written by a started process" in run_script("custom_strategy.py", "spawn")
