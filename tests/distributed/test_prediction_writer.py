"""BasePredictionWriter on several processes: each writes its own batches, with the indices of their items."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import run_script

SIZES = (23, 11, 2)
"""Items of each loader."""


@pytest.mark.parametrize(
    "processes", [pytest.param(2, marks=pytest.mark.exhaustive), pytest.param(3, marks=pytest.mark.slow)]
)
def test_each_item_is_written_once(processes: int, tmp_path: Path) -> None:
    """Shuffled or not, in batches of a batch sampler, from workers, and where some processes have no batch."""
    run_script(tmp_path, "predicted.py", torchrun=processes)
    found = [torch.load(tmp_path / str(rank), weights_only=True) for rank in range(processes)]
    for name, sizes in (("several", SIZES), ("one", SIZES[:1])):
        for number, size in enumerate(sizes):
            written = [entry for own in found for entry in own[name][0] if entry[0] == number]
            assert all(batch == indices for _, _, batch, indices in written)
            assert sorted(item for *_, indices in written for item in indices) == list(range(size))
        for own in found:
            batches, (predictions, indices), _ = own[name]
            by_loader = predictions if name == "several" else [predictions]
            assert [[batch.tolist() for batch in of_loader] for of_loader in by_loader] == indices
            assert indices == [[entry[3] for entry in batches if entry[0] == at] for at in range(len(sizes))]
    for own in found:
        returned = [torch.cat(of_loader).tolist() for of_loader in own["several"][2]]
        assert [sorted(items) for items in returned] == [list(range(size)) for size in SIZES]
        assert returned[1] == list(range(SIZES[1]))
        assert own["one"][2] is None
