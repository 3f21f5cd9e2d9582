"""Strategies of the user's, as the founding documents write them, on two processes each."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import RunScript


def test_overriding_how_ddp_wraps(run_script: RunScript) -> None:
    """A subclass that wraps with options of its own, by ``super`` or itself, trains to the bits of the named one."""
    output = run_script("custom_strategy.py", "wrap")
    assert sorted(output.split("\n")) == ["", "rank 0 trained with each", "rank 1 trained with each"]


@pytest.mark.parametrize(("start_method", "asking"), [("script", ["0", "1"]), ("spawn", ["0"])])
def test_a_strategy_registered_with_a_checkpoint_format(
    start_method: str, asking: list[str], run_script: RunScript, tmp_path: Path
) -> None:
    """The format writes its single file once an epoch, by rank 0; a run resumed from it ends as the whole one."""
    output = run_script("custom_strategy.py", start_method)
    name = "begun/checkpoints/epoch=1-step=8"
    assert sorted(output.splitlines()) == [f"rank {rank} resumed from {name}" for rank in asking]
    assert (tmp_path / "writers").read_text().split() == ["0"] * 8
    written = sorted(path.name for path in (tmp_path / "begun" / "checkpoints").iterdir())
    assert written == ["epoch=0-step=4", "epoch=1-step=8"]
