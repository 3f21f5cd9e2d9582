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


UNFREEZES = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from core import Module, Runtime, Trainer


class Net(Module):
    automatic_optimization = sys.argv[1] != "manual"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.early, self.late = nn.Linear(3, 3), nn.Linear(3, 1)
        self.early.requires_grad_(False)

    def forward(self, inputs):
        return self.late(self.early(inputs).tanh())

    def training_step(self, batch, batch_idx):
        loss = self(batch[0]).square().mean()
        if not self.automatic_optimization:
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.early.requires_grad_(True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


model = Net()
inputs = torch.arange(24.0).reshape(8, 3) / 24
if sys.argv[1] == "Runtime":
    runtime = Runtime(accelerator="cpu", devices=2)
    model, optimizer = runtime.prepare(model, model.configure_optimizers())
    for step in range(2):
        model.early.requires_grad_(step > 0)
        runtime.backward(model(inputs).mean())
        optimizer.step()
else:
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=2, logger=False, enable_checkpointing=False)
    trainer.fit(model, DataLoader(TensorDataset(inputs), batch_size=2))
    expected = Net()
    optimizer = expected.configure_optimizers()
    for step in range(4):
        expected.early.requires_grad_(step > 1)
        expected(inputs[step % 2 * 4 : step % 2 * 4 + 4]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(one, other)
"""


@pytest.mark.slow
@pytest.mark.parametrize("front_end", ["Trainer", "Runtime", "manual"])
def test_parameters_that_are_unfrozen_later(front_end: str, tmp_path: Path) -> None:
    """Their gradients would be averaged by no one, and the replicas drift apart; manual optimization averages all."""
    (tmp_path / "train.py").write_text(UNFREEZES, "utf-8")
    ended = run_python("train.py", front_end, cwd=tmp_path, expect=int(front_end != "manual"))
    if front_end != "manual":
        assert "2 parameter(s) that were frozen when the model was prepared require gradients now" in ended.stderr
        assert "early.weight" in ended.stderr
        assert "Set requires_grad before fit or prepare" in ended.stderr


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


CALLS = {
    "unwrapped": "runtime.unwrap_model(model)(torch.ones(2, 3))",
    "a part": "model.used(torch.ones(2, 3))",
    "prepared": "model(torch.ones(2, 3))",
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_without_calling_the_prepared_model(call: str, precision: str, tmp_path: Path) -> None:
    """What bypasses it is not reduced: the first backward refuses it. Without gradients all forms may be called."""
    script = SCRIPT.replace("devices=2", f"devices=2, precision={precision!r}").replace(", self.unused", "")
    script = script.replace("= nn.Linear(3, 1), nn.Linear(3, 1)", "= nn.Linear(3, 1)")
    looked = "\n".join(CALLS.values()).replace("\n", "; ")
    script = script.replace("for _ in", f"with torch.no_grad(): {looked}\nfor _ in")
    script = script.replace("backward(model(torch.ones(2, 3))", f"backward({CALLS[call]}")
    (tmp_path / "train.py").write_text(script + "print('trained')\n", "utf-8")
    ended = run_python("train.py", cwd=tmp_path, expect=int(call != "prepared"))
    assert ended.stdout.count("trained") == 2 * (call == "prepared")
    assert ("these are gradients of Net, but the prepared model was not called" in ended.stderr) == (call != "prepared")


WITHOUT_NUMPY = """
import sys
from importlib.machinery import PathFinder

class WithoutNumPy(PathFinder):
    @classmethod
    def find_spec(cls, name, *args):
        return None if name == "numpy" else super().find_spec(name, *args)

sys.meta_path[:] = [WithoutNumPy if finder is PathFinder else finder for finder in sys.meta_path]
import warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import core
from core import Runtime
from core.doctor.processes import check_collective
from core.errors import BackendError
import torch

core.seed_everything(1)
with Runtime(accelerator="cpu", devices=1) as runtime:
    model = torch.nn.Linear(3, 1)
    model, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    runtime.backward(model(torch.ones(2, 3)).mean())
    optimizer.step()
    runtime.load_state(runtime.save_state("state"))
for strategy in ("ddp", "ddp_spawn", "ddp_sharded"):
    try:
        Runtime(accelerator="cpu", devices=2, strategy=strategy).prepare(torch.nn.Linear(3, 1))
    except BackendError as error:
        print(error)
print(check_collective({}, 60.0))
"""


def test_several_processes_without_numpy(tmp_path: Path) -> None:
    """One process works. Several are refused before one starts, with the line that installs NumPy; so says doctor."""
    (tmp_path / "train.py").write_text(WITHOUT_NUMPY, "utf-8")
    printed = run_python("train.py", cwd=tmp_path).stdout
    for strategy in ("ddp", "ddp_spawn", "ddp_sharded"):
        assert f"strategy='{strategy}': NumPy is not installed." in printed
    assert printed.count("pip install numpy") == 4
