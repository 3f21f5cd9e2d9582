"""``load_from_checkpoint``, ``convert`` and ``fit(ckpt_path=...)`` of every format of core, at paths and URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.convert import convert
from core.errors import CheckpointError


class Net(Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def fit(net: Net, io: str, epochs: int, ckpt_path: str | None = None) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        checkpoint_io=io,
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(torch.arange(24.0).reshape(6, 4) / 24), batch_size=2)
    trainer.fit(net, data, ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("io", ["torch", "sharded", "safetensors", "async"])
@pytest.mark.parametrize("place", ["path", "file", "memory"])
def test_a_checkpoint_of_each_format(io: str, place: str, tmp_path: Path) -> None:
    """Loads without a word about its format; a resumed run ends with the weights of the uninterrupted one."""
    top = {"path": str(tmp_path), "file": tmp_path.as_uri(), "memory": f"memory://{tmp_path.name}"}[place]
    torch.manual_seed(0)
    net, whole = Net(width=4), Net(width=4)
    whole.load_state_dict(net.state_dict())
    fit(whole, io, 2)
    trainer = fit(net, io, 1)
    trainer.save_checkpoint(f"{top}/c.ckpt")
    trainer.strategy.checkpoint_io.wait()

    loaded = Net.load_from_checkpoint(f"{top}/c.ckpt")
    assert torch.equal(loaded.layer.weight, net.layer.weight)
    convert(f"{top}/c.ckpt", tmp_path / "one.pt")
    assert torch.equal(torch.load(tmp_path / "one.pt")["state_dict"]["layer.weight"], net.layer.weight)
    resumed = Net(width=4)
    fit(resumed, io, 2, f"{top}/c.ckpt")
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_another_format_than_that_of_the_run(tmp_path: Path) -> None:
    """The error names the setting that reads it."""
    fit(Net(), "safetensors", 1).save_checkpoint(tmp_path / "c.ckpt")
    with pytest.raises(CheckpointError, match="Set checkpoint_io='safetensors'"):
        fit(Net(), "torch", 2, str(tmp_path / "c.ckpt"))
