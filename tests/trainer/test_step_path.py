"""A step touches no file and waits for no device, whatever is switched on."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.callbacks import ProgressBar


class Logging(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.layer(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class CountOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def fit(steps: int, directory: Path) -> Counter[str]:
    """One epoch of that many steps with bar, checkpoint and log; the operations that ran."""
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[ProgressBar(refresh_seconds=3600)], default_root_dir=directory
    )
    loader = DataLoader(TensorDataset(torch.ones(steps, 4)), batch_size=1)
    operations = CountOperations()
    with operations:
        trainer.fit(Logging(), loader)
    return operations.counts


def test_steps_read_no_value_from_the_device(tmp_path: Path) -> None:
    """The number of values read from a device does not grow with the number of steps."""
    few, many = fit(3, tmp_path / "few"), fit(40, tmp_path / "many")
    assert many["aten::mm"] + many["aten::addmm"] > few["aten::mm"] + few["aten::addmm"]
    assert few["aten::_local_scalar_dense"] == many["aten::_local_scalar_dense"]


def test_steps_ask_nothing_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of ``stat`` and ``open`` calls does not grow with the number of steps."""
    calls = 0

    def counting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*args, **kwargs)

        return call

    fit(3, tmp_path / "warm")
    for name in ("stat", "open", "listdir", "scandir"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    fit(3, tmp_path / "few")
    few, calls = calls, 0
    fit(40, tmp_path / "many")
    assert few > 0
    assert calls == few
