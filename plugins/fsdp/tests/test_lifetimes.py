"""Models that the user drops while a run is active, and models and parts of models that outlive it."""

from __future__ import annotations

from pathlib import Path

from .conftest import run_script


def test_a_dropped_model_is_freed_and_a_kept_one_holds_no_process_group(tmp_path: Path) -> None:
    """On two processes: twenty models take the memory of one, and what is kept can be trained in a second run."""
    said = run_script(tmp_path, "lifetimes.py")
    assert len(said["ranks"]) == 2
    for found in said["ranks"]:
        assert found["alive"] == 0
        after_five, after_twenty = found["memory"]
        assert after_twenty - after_five < 60  # each has 8 MB, and twice that with gradients and momentum
        assert found["during"] > 0
        assert found["after"] == 0
