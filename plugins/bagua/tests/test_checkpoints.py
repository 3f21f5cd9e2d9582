"""Checkpoints in which processes have their own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torch_hal import Runtime
from torch_hal.errors import CheckpointError
from torch_hal.strategies import unwrap_optimizer

from .groups import run_group


def test_each_process_finds_its_own(tmp_path: Path) -> None:
    """Every process reads back its own weights and goes on exactly, whether it asks for model or optimizer first."""
    run_group(tmp_path, "orders.py", processes=2)


def _prepared(runtime: Runtime) -> dict[str, Any]:
    net = torch.nn.Linear(3, 1)
    model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return {"model": model, "optimizer": optimizer}


@pytest.mark.parametrize("source", ["bagua_decentralized", "ddp"])
def test_state_of_another_strategy(tmp_path: Path, source: str) -> None:
    """A checkpoint of another algorithm or strategy is read, and training goes on from its weights."""
    with Runtime(accelerator="cpu", devices=1, strategy=source) as runtime:
        parts = _prepared(runtime)
        runtime.save(parts, tmp_path / "checkpoint")
        (weight,) = [p.detach().clone() for p in parts["model"].parameters() if p.dim() == 2]
    with Runtime(accelerator="cpu", devices=1, strategy="bagua_low_precision_decentralized") as runtime:
        parts = _prepared(runtime)
        runtime.load(tmp_path / "checkpoint", parts)
        assert torch.equal(parts["model"].weight, weight)
        runtime.backward(parts["model"](torch.ones(1, 3)).sum())
        parts["optimizer"].step()


def test_another_number_of_processes_is_refused() -> None:
    """What two processes need cannot be given to one; the message says how many wrote it."""
    with Runtime(accelerator="cpu", devices=1, strategy="bagua_decentralized") as runtime:
        parts = _prepared(runtime)
        optimizer = unwrap_optimizer(parts["optimizer"])
        state = runtime.strategy.optimizer_state(optimizer)
        state["bagua"]["processes"] *= 2
        with pytest.raises(CheckpointError, match=r"written by 2 process\(es\).*this run has 1"):
            runtime.strategy.load_optimizer_state(optimizer, state)


def test_weights_that_come_after_a_step_are_new() -> None:
    """Up to the next step, a process's own weights in the optimizer's state go before those that all begin with."""
    with Runtime(accelerator="cpu", devices=1, strategy="bagua_decentralized") as runtime:
        parts, strategy = _prepared(runtime), runtime.strategy
        model, optimizer = parts["model"], unwrap_optimizer(parts["optimizer"])
        own, saved = model.weight.detach().clone(), strategy.optimizer_state(optimizer)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
        strategy.load_optimizer_state(optimizer, saved)
        strategy.load_module_state(model, zeros)
        assert torch.equal(model.weight, own)
        runtime.backward(model(torch.ones(1, 3)).sum())
        parts["optimizer"].step()
        strategy.load_module_state(model, zeros)
        assert not model.weight.any()
