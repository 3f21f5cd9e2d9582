"""Batch normalization over the batches of several processes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from .conftest import SCRIPTS, run_script, states


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_sharded"])
def test_three_uneven_processes_equal_one(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and running statistics are those of plain torch on the joined batches."""
    run_script(tmp_path, "batch_norm.py", strategy)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    batch_norm = import_module("batch_norm")

    network = batch_norm.network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for batch in batch_norm.batches():
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
    by_rank = states(tmp_path)
    assert sorted(by_rank) == [0, 1, 2]
    for rank, state in by_rank.items():
        assert (tmp_path / f"class{rank}").read_text() == "SyncedBatchNorm"
        for name, value in network.state_dict().items():
            torch.testing.assert_close(state[name], value, msg=f"{rank} {name}")
