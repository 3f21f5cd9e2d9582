"""A Module that calls backward itself, on several processes: as on one with the whole batch."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python

from .conftest import assert_same, run_script, states

ROWS_PER_STEP = 6


def run(out: Path, processes: int, mode: str = "go", strategy: str = "auto", expect: int = 0, **options: Any) -> None:
    """Three epochs of the two networks."""
    out.mkdir(exist_ok=True)
    batch = ROWS_PER_STEP // processes
    arguments = (str(processes), strategy, "3", mode, str(batch), json.dumps(options))
    run_script(out, "manual.py", *arguments, expect=expect)


@pytest.mark.parametrize(
    ("processes", "strategy", "options"),
    [
        (2, "ddp", {}),
        pytest.param(3, "ddp", {"toggles": False}, marks=pytest.mark.slow),
        pytest.param(3, "ddp", {"accumulate": 3}, marks=pytest.mark.slow),
        pytest.param(2, "ddp_spawn", {"clip": 0.01}, marks=pytest.mark.slow),
        pytest.param(2, "ddp_sharded", {}, marks=pytest.mark.slow),
        pytest.param(2, "ddp_find_unused_parameters_true", {}, marks=pytest.mark.slow),
    ],
)
def test_a_gan_is_that_of_one_process(processes: int, strategy: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Any number of backward passes a step: the gradients of each are averaged once."""
    run(tmp_path / "one", 1, **options)
    run(tmp_path / "many", processes, strategy=strategy, **options)
    (expected,) = states(tmp_path / "one").values()
    found = states(tmp_path / "many")
    assert sorted(found)[:processes] == list(range(processes)) or strategy == "ddp_spawn"
    for state in found.values():
        assert_same(state, found[0])
        torch.testing.assert_close(state, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_parameters_that_some_processes_use(tmp_path: Path) -> None:
    """Where only some have a gradient the others count as zero, and where none has it stays absent; nothing hangs."""
    run(tmp_path, 3, mode="uneven")
    found = states(tmp_path)
    assert sorted(found) == [0, 1, 2]
    for state in found.values():
        assert_same(state, found[0])


@pytest.mark.slow
def test_backward_passes_that_are_exchanged_together(tmp_path: Path) -> None:
    """``toggle_model(sync_grad=False)`` leaves gradients for the next backward pass to average; a step before fails."""
    run(tmp_path / "one", 1, mode="unsynchronized")
    run(tmp_path / "two", 2, mode="unsynchronized")
    (expected,) = states(tmp_path / "one").values()
    for state in states(tmp_path / "two").values():
        torch.testing.assert_close(state, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_rows_that_do_not_divide(tmp_path: Path) -> None:
    """The loader gives every process equally many batches, as in automatic optimization."""
    run(tmp_path, 3, mode="rows")
    found = states(tmp_path)
    for state in found.values():
        assert_same(state, found[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "options"), [(1, {}), (2, {}), (2, {"toggles": False, "accumulate": 2}), (2, {"across": True})]
)
def test_killed_and_resumed(processes: int, options: dict[str, Any], tmp_path: Path) -> None:
    """Within an epoch, also between two steps, and before their gradients are exchanged: bit for bit as without."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, processes, **options)
    run(broken, processes, mode="die", expect=-signal.SIGKILL, **options)
    run(broken, processes, mode="resume", **options)
    for rank, state in states(whole).items():
        assert_same(states(broken)[rank], state)


OPEN = """
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Module, Trainer


class Manual(Module):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1500, 1500)  # its gradients are 9 MB

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        if batch_idx == 0:
            optimizer.zero_grad()
        self.manual_backward(self.layer(batch).square().mean())
        if batch_idx == 0:
            optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = DataLoader(torch.randn(8, 1500, generator=torch.Generator().manual_seed(0)), batch_size=2)
gradients = []
for epochs, path in ((1, None), (1, "last")):
    torch.manual_seed(0)
    model = Manual()
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=epochs, **quiet)
    trainer.fit(model, data, ckpt_path=path)
    gradients.append(model.layer.weight.grad)
assert torch.equal(*gradients)
print("equal", trainer.global_rank)
"""


@pytest.mark.slow
def test_open_gradients_of_any_size(tmp_path: Path) -> None:
    """Those of each process are in the checkpoint, also where they are longer than what torch's store takes at once."""
    (tmp_path / "script.py").write_text(OPEN)
    done = run_python(tmp_path / "script.py", cwd=tmp_path, warnings="ignore", timeout=240)
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("equal")) == ["equal 0", "equal 1"]
