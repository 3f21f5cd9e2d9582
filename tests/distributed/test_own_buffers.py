"""Buffers that differ between the processes, such as the running means of batch norm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from python_processes import run_python

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


EVALUATING = """
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Module, Trainer
from core.strategies import DDPStrategy


class Apart(DDPStrategy):
    # As engines that leave each process its own buffers: what it declares for evaluation is all that differs.
    equal_buffers_in_evaluation = {shares}


class Counting(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros(3, dtype=torch.int16))

    def training_step(self, batch, batch_idx):
        self.mean += self.global_rank + 1
        self.count += self.global_rank + 1
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        self.seen = self.mean.tolist(), self.count.tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


quiet = dict(enable_progress_bar=False, enable_model_summary=False, logger=False, enable_checkpointing=False)
trainer = Trainer(
    accelerator="cpu", devices=3, strategy=Apart(broadcast_buffers=False), max_epochs=1, num_sanity_val_steps=0, **quiet
)
module = Counting()
trainer.fit(module, DataLoader(torch.ones(6, 1)), DataLoader(torch.ones(3, 1)))
print(f"rank {{trainer.global_rank}} saw", *module.seen, flush=True)
"""


@pytest.mark.parametrize(
    "shares", [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.exhaustive)]
)
def test_a_strategy_declares_whose_buffers_evaluation_uses(shares: bool, tmp_path: Path) -> None:
    """``equal_buffers_in_evaluation``: process 0's in all, of each dtype; otherwise each process its own."""
    (tmp_path / "train.py").write_text(EVALUATING.format(shares=shares), "utf-8")
    said = run_python("train.py", cwd=tmp_path).stdout
    for rank in range(3):
        steps = 2 * (1 if shares else rank + 1)
        assert f"rank {rank} saw {[float(steps)] * 2} {[steps] * 3}\n" in said
