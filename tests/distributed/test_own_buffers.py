"""Buffers that differ between the processes, such as the running means of batch norm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import assert_same, run_script


@pytest.mark.slow
def test_each_process_resumes_with_its_own_buffers(tmp_path: Path) -> None:
    """Three processes with ``broadcast_buffers=False`` go on bit for bit, in a Trainer and in a loop."""
    run_script(tmp_path, "own_buffers.py", torchrun=3)
    found = [torch.load(tmp_path / str(rank)) for rank in range(3)]
    for own in found:
        assert_same(own["whole"], own["resumed"])
        assert_same(own["loop"], own["loop resumed"])
    for name, mean in (("whole", "model.1.running_mean"), ("loop", "1.running_mean")):
        assert not torch.equal(found[0][name][mean], found[2][name][mean])
