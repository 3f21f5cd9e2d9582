"""What a Trainer's CSVLogger writes next to its rows: names with a prefix, and a picture of the curves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from declared import PREFIX
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.loggers import CSVLogger


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(logger: CSVLogger) -> Path:
    names = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    quiet: dict[str, Any] = dict.fromkeys(names, False)
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=2, logger=logger, log_every_n_steps=1, **quiet)
    trainer.fit(Net(), DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
    return Path(logger.log_dir)


def test_prefix(tmp_path: Path) -> None:
    """It begins each name but that of the step, with a hyphen, as in Lightning."""
    folder = fitted(CSVLogger(tmp_path, prefix="run"))
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert sorted(header) == ["run-epoch", "run-loss", "step"]


def test_picture(tmp_path: Path) -> None:
    """At the end of a fit, where matplotlib is installed; otherwise there is none."""
    picture = fitted(CSVLogger(tmp_path)) / "metrics.png"
    if importlib.util.find_spec("matplotlib") is None:
        assert not picture.exists()
        pytest.skip(f"{PREFIX}matplotlib is not installed")
    assert picture.read_bytes().startswith(b"\x89PNG")
