"""Files that Lightning itself has written, from which core's Trainer goes on; and the reverse: Lightning reads ours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import run_script

STEPS = 6
"""Of an epoch on one process."""


@pytest.mark.parametrize("devices", [1, 2])
def test_the_losses_are_those_of_lightning(devices: int, tmp_path: Path) -> None:
    """From the end of each epoch, in each process, bit for bit; within an epoch is an error."""
    out = tmp_path / "out"
    theirs = run_script(out, "continued.py", "lightning", devices)
    ours = run_script(out, "continued.py", "here", devices)
    assert ours == {**theirs, "hparams": {"width": 8}, "read by Lightning": True}
    for rank in range(devices):
        whole = json.loads((out / f"seen-{rank}.json").read_text())
        found = json.loads((out / f"here-{rank}.json").read_text())
        assert len(found) == (17 if devices == 1 else 1)
        for name, seen in found.items():
            epoch, step = re.search(r"epoch=(\d)", name), re.search(r"step=(\d+)", name)
            if step is not None and int(step[1]) % STEPS:
                assert f"within epoch {int(step[1]) // STEPS}, after batch {int(step[1]) % STEPS} of it" in seen
                continue
            epochs = int(step[1]) // STEPS if step else 4 if epoch is None else int(epoch[1]) + 1
            assert seen == whole[epochs * STEPS // devices :], name
            assert len(seen) == (4 - epochs) * STEPS // devices
