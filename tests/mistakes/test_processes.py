"""Mistakes that show only on several processes."""

from __future__ import annotations

import re
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


OUTSIDE = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from core import Module, Runtime, Trainer

criterion = nn.Linear(2, 1)


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer, self.heads = nn.Linear(3, 2), [criterion]

    def training_step(self, batch, batch_idx):
        return self.heads[0](self.layer(batch[0])).mean()

    def on_train_epoch_start(self):
        if sys.argv[1] == "added":
            self.optimizers().add_param_group({"params": criterion.parameters()})

    def configure_optimizers(self):
        parameters = [] if sys.argv[1] == "added" else criterion.parameters()
        return torch.optim.SGD([*self.layer.parameters(), *parameters], lr=0.1)


if sys.argv[1] != "Runtime":
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(Net(), DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2))
else:
    runtime, model = Runtime(accelerator="cpu", devices=2), Net()
    runtime.prepare(model, model.configure_optimizers())
"""


OUTSIDE_TOO = "model, criterion, optimizer = runtime.prepare(model, criterion, optimizer)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("Trainer", ["configure_optimizers: SGD holds 2 parameter(s) that are not of the module", OUTSIDE_TOO]),
        ("Runtime", ["prepare: SGD holds 2 parameter(s) that are not of the module that is trained", OUTSIDE_TOO]),
        ("added", ["add_param_group: 2 parameter(s), of shape (1, 2), (1,), are of no model that was prepared"]),
    ],
)
def test_an_optimizer_of_parameters_that_are_not_the_modules(call: str, says: list[str], tmp_path: Path) -> None:
    """Nothing would average their gradients. A list registers no layers; a loss with weights is a module."""
    (tmp_path / "train.py").write_text(OUTSIDE, "utf-8")
    ended = run_python("train.py", call, cwd=tmp_path, expect=1)
    assert all(text in ended.stderr for text in says), ended.stderr


EARLY = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from core import Runtime


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, inputs):
        if sys.argv[1] == "hook":
            return self.head(self.layer(inputs))
        inputs.requires_grad_()
        parts = [inputs, 2 * inputs] if sys.argv[1] == "twice" else [inputs]
        return self.head(sum(checkpoint(self.layer, part, use_reentrant=True) for part in parts))


runtime, model = Runtime(accelerator="cpu", devices=2), Net()
model, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
if sys.argv[1] == "hook":
    model.head.weight.register_post_accumulate_grad_hook(lambda parameter: None)
for _ in range(2):
    with runtime.no_sync(model):
        runtime.backward(model(torch.ones(2, 3)).mean())
    runtime.backward(model(torch.ones(2, 3)).mean())
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("hook", "1 parameter(s) have a hook of register_post_accumulate_grad_hook: 'head.weight'"),
        ("twice", "is used more than once, in parts of the forward pass that torch.utils.checkpoint recomputes with"),
        ("once", ""),
    ],
)
def test_gradients_before_and_after_their_average(use: str, said: str, tmp_path: Path) -> None:
    """In silence, the processes would train different models: torch averages each gradient once, when it is there."""
    (tmp_path / "train.py").write_text(EARLY, "utf-8")
    assert said in run_python("train.py", use, cwd=tmp_path, expect=int(bool(said))).stderr


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
        return None if name == sys.argv[2] else super().find_spec(name, *args)

sys.meta_path[:] = [WithoutNumPy if finder is PathFinder else finder for finder in sys.meta_path]
import warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
from core import Runtime, Trainer, Module
import torch
from torch.utils.data import DataLoader, TensorDataset

strategy = sys.argv[1]
data = TensorDataset(torch.arange(14.0).reshape(7, 2))

class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)

def train(runtime):
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight)
    model, optimizer, loader = runtime.prepare(
        model, torch.optim.Adam(model.parameters(), lr=0.01), DataLoader(data, 1, num_workers=2)
    )
    for batch in loader:
        runtime.backward(model(batch[0]).mean())
        optimizer.step()
        optimizer.zero_grad()
    runtime.load_state(runtime.save_state("state"))
    assert runtime.gather_object([runtime.process_index]) == [*range(runtime.num_processes)]
    assert runtime.broadcast_object_list([runtime.process_index], from_process=1) == [1]
    whole = runtime.get_state_dict(model)
    runtime.print("trained", whole["weight"].tolist())
    assert sys.argv[2] not in sys.modules

if __name__ == "__main__":
    Trainer(accelerator="cpu", devices=3, strategy=strategy, max_epochs=1, enable_progress_bar=False,
            logger=False, enable_model_summary=False).fit(Net(), DataLoader(data, 1))
    Runtime(accelerator="cpu", devices=3, strategy=strategy).launch(train)
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param("ddp_spawn", marks=pytest.mark.exhaustive), "ddp_sharded"])
def test_several_processes_without_numpy(strategy: str, tmp_path: Path) -> None:
    """Both front ends train, save, load and exchange objects; the parameters are those with NumPy."""
    printed = []
    (tmp_path / "train.py").write_text(WITHOUT_NUMPY, "utf-8")
    for hidden in ("numpy", "no_such_module"):
        printed.append(re.findall("trained .*", run_python("train.py", strategy, hidden, cwd=tmp_path).stdout))
    assert printed[0] == printed[1]
    assert len(printed[0]) == 1
