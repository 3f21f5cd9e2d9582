"""Collectives of the Runtime on two processes, each against its formula."""

from typing import Any

import pytest
import torch

from core import Runtime
from core.checkpoints import TorchCheckpointIO
from core.errors import CheckpointError, ConfigurationError


class FullDisk(TorchCheckpointIO):
    """Fails as what a user writes with may: with its own error."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        raise RuntimeError("no space")


def check(runtime: Runtime) -> None:
    rank = runtime.process_index
    assert runtime.num_processes == 2
    assert runtime.is_main_process == (rank == 0)
    assert runtime.local_process_index == rank

    vector = torch.tensor([1.0, 2.0]) + 10 * rank
    gathered = runtime.gather({"v": vector, "s": [torch.tensor(rank)], "nothing": None})
    assert torch.equal(gathered["v"], torch.tensor([1.0, 2.0, 11.0, 12.0]))
    assert torch.equal(gathered["s"][0], torch.tensor([0, 1]))
    assert gathered["nothing"] is None
    assert torch.equal(vector, torch.tensor([1.0, 2.0]) + 10 * rank), "the input is left as it was"

    expected = {
        "mean": [6.0, 7.0],
        "sum": [12.0, 14.0],
        "min": [1.0, 2.0],
        "max": [11.0, 12.0],
        "product": [11.0, 24.0],
    }
    for reduction, values in expected.items():
        assert torch.equal(runtime.reduce(vector, reduction), torch.tensor(values)), reduction
    assert runtime.reduce(torch.tensor(rank + 1), "sum").item() == 3
    assert runtime.reduce(torch.tensor(rank), "mean").item() == 0.5
    with pytest.raises(ConfigurationError, match=r"reduction='bogus'.*mean"):
        runtime.reduce(vector, "bogus")

    assert runtime.broadcast({"from": rank, "t": torch.tensor([rank])}, from_process=1)["t"].item() == 1
    with pytest.raises(ConfigurationError, match="from_process=2"):
        runtime.broadcast(rank, from_process=2)

    for odd in (torch.zeros(2 + rank), torch.zeros(2, dtype=(torch.float32, torch.float64)[rank])):
        with pytest.raises(ConfigurationError, match="differ between processes"):
            runtime.gather(odd)

    with pytest.raises((RuntimeError, CheckpointError)[rank], match="no space"):
        runtime.save({"vector": vector}, "checkpoint")

    order = []
    with runtime.main_process_first():
        order.append(rank)
    runtime.barrier()
    runtime.wait_for_everyone()
    runtime.print("printed once")


if __name__ == "__main__":
    Runtime(accelerator="cpu", strategy="ddp", devices=2, checkpoint_io=FullDisk()).launch(check)
