"""Mistakes that show only on several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from python_processes import run_python

SCRIPT = """
import torch
from torch import nn
from core import Runtime


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, inputs):
        return self.used(inputs)


runtime = Runtime(accelerator="cpu", devices=2)
model = Net()
model, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(2):
    runtime.backward(model(torch.ones(2, 3)).mean())
    optimizer.step()
"""


@pytest.mark.slow
def test_unused_parameters(tmp_path: Path) -> None:
    """The error of a model with parameters that take no part in the loss names the strategy that allows it."""
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    ended = run_python("train.py", cwd=tmp_path, expect=1)
    assert "Parameter indices which did not receive grad" in ended.stderr
    assert "set strategy='ddp_find_unused_parameters_true'" in ended.stderr


@pytest.mark.slow
def test_what_prepare_returns_is_dropped(tmp_path: Path) -> None:
    """Training the model as it was before prepare reduces no gradients: the first backward refuses it."""
    wrong = SCRIPT.replace("model, optimizer = runtime", "_, optimizer = runtime").replace(
        "for _ in", "del _\nfor _ in"
    )
    (tmp_path / "train.py").write_text(wrong, "utf-8")
    ended = run_python("train.py", cwd=tmp_path, expect=1)
    assert "these are gradients of the Net that was passed to prepare" in ended.stderr
    assert "model, optimizer = runtime.prepare(model, optimizer)" in ended.stderr
