"""Batch normalization over the batches of several processes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from python_processes import run_python

from .conftest import SCRIPTS, run_script, states

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Module, Trainer
from core.callbacks import ModelCheckpoint


class Normalized(Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        return self.network(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.network(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(*callbacks, **strategy):
    quiet = dict(enable_progress_bar=False, enable_model_summary=False, logger=False, enable_checkpointing=None)
    return Trainer(accelerator="cpu", devices=2, max_epochs=2, callbacks=list(callbacks), **quiet, **strategy)


generator = torch.Generator().manual_seed(0)
train, val = torch.randn(23, 6, generator=generator), torch.randn(7, 6, generator=generator)
loaders = DataLoader(train * train, batch_size=4), DataLoader(val, batch_size=2)
torch.manual_seed(1)
module, saves = Normalized(), ModelCheckpoint("saved", "{epoch}", save_top_k=-1)
runs = trainer(saves)
runs.fit(module, *loaders)
in_fit = runs.callback_metrics["val_loss"]
[alone] = runs.validate(Normalized(), loaders[1], ckpt_path="saved/epoch=1.ckpt", verbose=False)
print("validated again", float(in_fit) == alone["val_loss"])
[after] = runs.validate(module, loaders[1], verbose=False)
print("the module itself", float(in_fit) == after["val_loss"])
resumed = trainer(ModelCheckpoint("other", save_top_k=0))
resumed.fit(Normalized(), *loaders, ckpt_path="saved/epoch=0.ckpt")
print("resumed", torch.equal(in_fit, resumed.callback_metrics["val_loss"]))
"""


@pytest.mark.slow
def test_what_is_validated_is_what_checkpoints_hold(tmp_path: Path) -> None:
    """Process 0's running statistics, in all processes: validating a checkpoint, and resuming, give the fit's value."""
    (tmp_path / "train.py").write_text(TRAINING, "utf-8")
    said = run_python("train.py", cwd=tmp_path).stdout
    assert said.count("validated again True") == said.count("the module itself True") == said.count("resumed True") == 2


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
