"""Logging where processes take different numbers of steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import run_script


def test_logged_with_sync_dist_in_steps_that_not_every_process_has(tmp_path: Path) -> None:
    """Three processes evaluate four batches, log by step and by epoch, and do not wait for steps of others."""
    run_script(tmp_path, "uneven_logs.py")
    # The DataModule's data is prepared once for each of the two runs, before any process loads it.
    assert (tmp_path / "prepared").read_text() == "once\ndone\n" * 2
    said = json.loads((tmp_path / "logs.json").read_text())
    for stage in ("fit", "test"):
        assert said[stage]["val_epoch"] == pytest.approx(sum(range(14)) / 14)
        assert said[stage]["sum_epoch"] == pytest.approx(sum(range(14)))
    assert said["fit"]["val"] == said["fit"]["val_epoch"]
    # Twelve items in batches of two, over three processes: the means of the first six, and of the last six.
    steps = [metrics["train_step"] for _, metrics in said["sent"] if "train_step" in metrics]
    assert steps == pytest.approx([sum(range(6)) / 6, sum(range(6, 12)) / 6])
    assert said["fit"]["train_epoch"] == said["fit"]["train"] == pytest.approx(sum(range(12)) / 12)
    # A sum over steps and processes has each value once.
    assert [metrics["items_step"] for _, metrics in said["sent"] if "items_step" in metrics] == [6, 6]
    assert said["fit"]["items_epoch"] == 12
