"""A state in Accelerate's layout, written here by plain torch, which ``load_state`` continues."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim import lr_scheduler

from core import Runtime
from core.errors import CheckpointError

INPUTS = torch.arange(48.0).reshape(12, 4).sin()


class Counter:
    value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Parts:
    """A small problem with two models, of which one has tied weights, and every generator."""

    def __init__(self, kind: type[torch.optim.Optimizer] = torch.optim.Adam) -> None:
        torch.manual_seed(0)
        self.first, self.second = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)), nn.Linear(4, 1)
        self.first[2].weight = self.first[0].weight
        parameters = [*self.first.parameters(), *self.second.parameters()]
        self.optimizer = kind(parameters, lr=0.1)  # type: ignore[call-arg]
        self.scheduler = lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.counter = Counter()

    def train(self, steps: int, backward: Callable[[Any], Any] = torch.Tensor.backward) -> list[float]:
        losses = []
        for index in range(steps):
            noise = random.random() + float(np.random.rand())
            loss = self.second(self.first(INPUTS[index % 3 :: 3] + noise)).square().mean()
            backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def save(self, path: Path, safe: bool = True, processes: int = 1, step: int = 0) -> None:
        """Write the files of Accelerate's ``save_state``."""
        path.mkdir()
        for model, name in ((self.first, ""), (self.second, "_1")):
            state = {f"module.{key}" if processes > 1 else key: value for key, value in model.state_dict().items()}
            if safe:
                state = {key: value for key, value in state.items() if not key.endswith("2.weight")}
                save_file(state, path / f"model{name}.safetensors", metadata={"format": "pt"})
            else:
                torch.save(state, path / f"pytorch_model{name}.bin")
        torch.save(self.optimizer.state_dict(), path / "optimizer.bin")
        torch.save(self.scheduler.state_dict(), path / "scheduler.bin")
        torch.save(self.counter.state_dict(), path / "custom_checkpoint_0.pkl")
        states = {"step": step, "random_state": random.getstate(), "numpy_random_seed": np.random.get_state()}
        for rank in range(processes):
            torch.save({**states, "torch_manual_seed": torch.get_rng_state()}, path / f"random_states_{rank}.pkl")

    def prepared(self, **settings: Any) -> Runtime:
        runtime = Runtime(accelerator="cpu", devices=1, **settings)
        prepared = runtime.prepare(self.first, self.second, self.optimizer, self.scheduler)
        self.first, self.second, self.optimizer, self.scheduler = prepared
        runtime.register_for_checkpointing(self.counter)
        return runtime


@pytest.mark.parametrize("safe", [True, False])
def test_the_run_goes_on(safe: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the losses of plain torch, and the random numbers of each generator; tied weights stay tied."""
    parts = Parts()
    parts.train(3)
    parts.counter.value = 3
    parts.save(tmp_path / "state", safe)
    losses = parts.train(3)

    again = Parts()
    runtime = again.prepared()
    again.train(2, runtime.backward)
    runtime.load_state(tmp_path / "state")
    assert again.train(3, runtime.backward) == losses
    assert again.counter.value == 3
    assert runtime.unwrap_model(again.first)[0].weight is runtime.unwrap_model(again.first)[2].weight
    assert "saved by Accelerate on 1 process(es)" in caplog.text
    assert "Not restored, since the state does not contain it: the position in the data" in caplog.text


def test_parts_of_your_choice(tmp_path: Path) -> None:
    """``load`` takes the parts by the names of their files, without suffix, and returns the others."""
    parts = Parts()
    parts.train(2)
    parts.save(tmp_path / "state")
    again = Parts()
    runtime = again.prepared()
    rest = runtime.load(tmp_path / "state", {"model": again.first, "model_1": again.second})
    assert torch.equal(again.first.state_dict()["2.weight"], parts.first.state_dict()["2.weight"])
    assert sorted(rest) == ["custom_checkpoint_0", "optimizer", "scheduler"]
    torch.save(parts.second.state_dict(), tmp_path / "weights.pt")
    assert runtime.load(tmp_path / "weights.pt", {"model": again.second}) == {}
    assert torch.equal(again.second.weight, parts.second.weight)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_schedulers_of_several_processes(kind: Any, tmp_path: Path) -> None:
    """Accelerate steps them once for each process; the learning rates would be others, so it is an error."""
    parts = Parts(kind)
    parts.train(2)
    parts.scheduler.step()
    parts.scheduler.step()
    parts.save(tmp_path / "state", processes=2)
    again = Parts(kind)
    runtime = again.prepared()
    with pytest.raises(
        CheckpointError, match=r"on 2 processes, where it steps a scheduler 2 times.*rest\['scheduler'\]"
    ):
        runtime.load_state(tmp_path / "state")


def test_another_number_of_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All but the generators goes on, where the schedulers count the steps of the optimizer."""
    parts = Parts()
    parts.train(2)
    parts.save(tmp_path / "state", processes=2)
    again = Parts()
    runtime = again.prepared()
    before = torch.get_rng_state()
    runtime.load_state(tmp_path / "state")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.second.weight, parts.second.weight)
    assert "the random number generators, which are those of 2 process(es)" in caplog.text


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda path: (path / "model_1.safetensors").unlink(), {}, "it has nothing in addition, and lacks model_1"),
        (
            lambda path: shutil.copy(path / "optimizer.bin", path / "optimizer_1.bin"),
            {},
            "it has optimizer_1 in addition, and lacks nothing",
        ),
        (lambda path: None, {"gradient_accumulation_steps": 2}, "within an accumulation of gradients"),
        (lambda path: torch.save(Counter(), path / "custom_checkpoint_0.pkl"), {}, "it contains .*Counter"),
        (lambda path: torch.save({"a": random.Random()}, path / "random_states_0.pkl"), {}, "random.Random"),
        (lambda path: (path / "random_states_0.pkl").unlink(), {}, "is not a committed checkpoint"),
    ],
)
def test_what_cannot_go_on(change: Any, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """The error says which file or object; nothing but numpy's arrays is allowed next to tensors and plain values."""
    parts = Parts()
    parts.train(1)
    parts.save(tmp_path / "state", step=1)
    change(tmp_path / "state")
    again = Parts()
    runtime = again.prepared(**settings)
    with pytest.raises(CheckpointError, match=message):
        runtime.load_state(tmp_path / "state")
