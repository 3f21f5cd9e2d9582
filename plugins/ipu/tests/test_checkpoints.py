"""Checkpoints hold what the devices have, and a resumed run is the uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torch_hal import Trainer
from torch_hal.callbacks import ModelCheckpoint
from torch_hal.checkpoints import TorchCheckpointIO
from torch_hal.errors import CheckpointError

from .problem import OPTIONS, Classifier, Losses, loader


class Scheduled(Classifier):
    """Adam, whose rate changes each step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8), "interval": "step"}]


def fit(folder: Path, epochs: int, **options: Any) -> tuple[Scheduled, list[Any]]:
    """Train with a checkpoint each epoch, on a loader that shuffles; the module and the losses."""
    torch.manual_seed(5)
    module, noted = Scheduled(), Losses()
    batches = torch.utils.data.DataLoader(loader().dataset, batch_size=16, shuffle=True)
    arguments = {**OPTIONS, "enable_checkpointing": True, "accelerator": "ipu", "devices": 2, "max_epochs": epochs}
    trainer = Trainer(**arguments, callbacks=[noted, ModelCheckpoint(dirpath=folder, save_top_k=-1)])
    trainer.fit(module, batches, loader(), **options)
    return module, noted.losses


def test_resuming_is_exact(tmp_path: Path) -> None:
    """Two epochs, and two more from their checkpoint, are bit for bit four at once: weights, moments, rate, order."""
    whole, expected = fit(tmp_path / "whole", 4)
    _, first = fit(tmp_path / "parts", 2)
    resumed, then = fit(tmp_path / "parts", 4, ckpt_path="last")
    assert first + then == expected
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_is_of_plain_tensors(tmp_path: Path) -> None:
    """A checkpoint that was written between steps has the devices' weights, and none of poptorch's classes."""
    module, arguments = Scheduled(), {**OPTIONS, "enable_checkpointing": True, "max_epochs": 1}
    module.net.insert(1, torch.nn.BatchNorm1d(12))
    Trainer(**arguments, accelerator="ipu", devices=2, callbacks=ModelCheckpoint(dirpath=tmp_path)).fit(
        module, loader()
    )
    (path,) = tmp_path.iterdir()
    checkpoint = TorchCheckpointIO().load_checkpoint(path)
    own = module.state_dict()
    assert all(
        type(value) is torch.Tensor and torch.equal(value, own[name])
        for name, value in checkpoint["state_dict"].items()
    )
    assert set(checkpoint["optimizer_states"][0]["poptorch"]) >= {"ipu_state", "ipu_param", "param_groups"}


def test_weights_go_to_the_cpu_and_back(tmp_path: Path) -> None:
    """A module trained on IPUs is validated on the CPU from its checkpoint, with the same loss; and the other way."""
    fit(tmp_path / "ipu", 2)
    on = {name: Trainer(accelerator=name, devices=1, **OPTIONS) for name in ("ipu", "cpu")}
    (path, *_) = sorted((tmp_path / "ipu").iterdir())
    metrics = {name: trainer.validate(Scheduled(), loader(), ckpt_path=path)[0] for name, trainer in on.items()}
    assert metrics["ipu"]["val_loss"] == pytest.approx(metrics["cpu"]["val_loss"], abs=1e-6)


def test_optimizer_of_another_accelerator(tmp_path: Path) -> None:
    """An optimizer's state goes neither from elsewhere to IPUs nor from them elsewhere, and says so."""
    arguments = {**OPTIONS, "enable_checkpointing": True, "max_epochs": 1}
    fit(tmp_path / "ipu", 1)
    (path,) = (tmp_path / "ipu").iterdir()
    with pytest.raises(CheckpointError, match="optimizer"):
        Trainer(**arguments, accelerator="cpu", devices=1).fit(Scheduled(), loader(), ckpt_path=path)
    Trainer(**arguments, accelerator="cpu", devices=1, callbacks=ModelCheckpoint(dirpath=tmp_path / "cpu")).fit(
        Scheduled(), loader()
    )
    with pytest.raises(CheckpointError, match="not written on IPUs"):
        fit(tmp_path / "cpu", 2, ckpt_path="last")
