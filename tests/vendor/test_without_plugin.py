"""A vendor's torch backend alone, with no plugin for core: its cards are trained on all the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from python_processes import run_python

from .conftest import Install

_SCRIPT = Path(__file__).parent / "torch-hal-acme" / "tests" / "scripts" / "neutral.py"


@pytest.mark.parametrize(("devices", "precision"), [(1, "32-true"), (1, "bf16-mixed"), (2, "32-true")])
def test_cards_without_a_plugin(install: Install, tmp_path: Path, devices: int, precision: str) -> None:
    """``auto`` picks the cards; autocast, collectives and losses are those of the cards' own backend."""
    env = {**install("torch-acme"), "ACME_DEVICES": "2"}
    done = run_python(_SCRIPT, devices, precision, cwd=tmp_path, env=env)
    # Where Python does not buffer, a line and its end are written apart, and another process may write between.
    assert sorted(re.findall(r"process \d equal", done.stdout)) == [f"process {rank} equal" for rank in range(devices)]


LATE = """
import torch
from core import Module, Runtime, Trainer

torch.ones(1, requires_grad=True).sum().backward()  # autograd counts the devices


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def own_loop():
    runtime = Runtime(accelerator="acme", devices=1, import_modules="torch_acme")
    net = runtime.prepare(Net())
    runtime.backward(net.layer(torch.ones(1, 2, device=runtime.device)).sum())


def fit():
    trainer = Trainer(accelerator="acme", devices=1, max_epochs=1, logger=False, import_modules="torch_acme")
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(2, 2)))


for run in (own_loop, fit):
    try:
        run()
    except RuntimeError as error:
        print(run.__name__, *error.__notes__)
"""


def test_a_backend_that_is_imported_after_a_backward_pass(install: Install, tmp_path: Path) -> None:
    """The gradients of a device type that is registered after the first backward pass fail with a remedy."""
    (tmp_path / "late.py").write_text(LATE, "utf-8")
    env = {**install("torch-acme"), "ACME_DEVICES": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    said = run_python("late.py", cwd=tmp_path, env=env).stdout
    for name in ("own_loop", "fit"):
        assert re.search(rf"^{name} .*was imported later: import it at the top of the script\.$", said, re.MULTILINE), (
            said
        )
