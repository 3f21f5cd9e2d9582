"""A process for each device, started by torch_xla.launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torch_hal import Runtime
from torch_hal.checkpoints import TorchCheckpointIO
from torch_hal.errors import ConfigurationError

from ..problem import BATCH, furthest, net, plain_losses
from .conftest import RunScript


def distance(weights: list[Any], module: torch.nn.Module) -> float:
    """The largest difference between weights."""
    pairs = zip(weights, module.parameters(), strict=True)
    return max(float((torch.tensor(one) - other.detach()).abs().max()) for one, other in pairs)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_runtime(run_script: RunScript, accumulate: int) -> None:
    """Gradients are averaged once a step, so that two processes train as one does on their joined batches."""
    told = run_script("two.py", "runtime", str(accumulate))
    step = ["forward"] * accumulate + ["xm.all_reduce", "step", "torch_xla.sync"]
    assert told["calls"] == step * (8 // accumulate)
    module = net(norm=False)
    assert furthest(told["losses"], plain_losses(module, batch_size=2 * BATCH, accumulate=accumulate)) <= 1e-6
    assert distance(told["weights"], module) <= 1e-6
    assert told["device"] == "xla:0"  # a process sees its own device alone


def test_trainer(run_script: RunScript) -> None:
    """The Trainer clips the averaged gradients, and hands the trained weights back to the process that asked."""
    told = run_script("two.py", "trainer")
    module = net(norm=False)
    plain_losses(module, batch_size=2 * BATCH, clip=0.5)
    assert distance(told["weights"], module) <= 1e-6
    assert (told["launcher"], told["group"]) == ("xla", None)


def test_collectives(run_script: RunScript) -> None:
    """Each collective against its formula; tensors are left as they were; ranks are the runtime's."""
    told = run_script("two.py", "collectives")
    assert told == {
        "mean": [1.0, 2.5],
        "sum": [2.0, 5.0],
        "min": [1.0, 0.0],
        "max": [1.0, 5.0],
        "product": [1.0, 0.0],
        "mean_of_whole": 0.5,
        "own": [1.0, 0.0],
        "gather": [1.0, 0.0, 1.0, 5.0],
        "broadcast": [1.0, 5.0],
        "objects": [{"rank": 0}, {"rank": 1}],
        "differing": told["differing"],
        "environment": "xla",
        "ranks": [2, 0, 0, 1],
        "inside": "xla",
    }
    assert "rank 0: (1,) float32; rank 1: (2,) float32" in told["differing"]


def test_checkpoint(run_script: RunScript, tmp_path: Path) -> None:
    """One process writes, with core's own CheckpointIO too, and all tensors are on the host."""
    run_script("two.py", "save", str(tmp_path / "checkpoint"))
    content = TorchCheckpointIO().load_checkpoint(tmp_path / "checkpoint")
    assert content["weight"].device.type == "cpu"
    assert content["weight"].tolist() == [1.0, 1.0]


def test_failures(run_script: RunScript) -> None:
    """A process that fails ends the others and is named with its error; so is what cannot be sent to a process."""
    told = run_script("two.py", "refusals")
    assert told["failed"].startswith("rank 1 failed: ValueError: rank 1 has had enough")
    assert "in fail" in told["failed"]
    assert told["seconds"] < 50  # the others' wait for it ends by itself after 60
    assert "cannot be pickled" in told["unpicklable"]
    assert "runs a function in each process" in told["no function"]


@pytest.mark.parametrize("strategy", ["xla_spmd", "xla"])
def test_some_of_the_devices_are_refused(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """Where torch_xla takes all devices that it sees, others than all of them in order are refused by name."""
    monkeypatch.setenv("TPU_CHIPS_PER_HOST_BOUNDS", "3,1,1")
    with pytest.raises(ConfigurationError, match=f"xla:0, xla:1 of 3, but under strategy='{strategy}'"):
        Runtime(accelerator="xla", strategy=strategy, devices=2)


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that another launcher started are not taken for torch_xla's."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="'torchelastic' started this process"):
        Runtime(accelerator="xla", strategy="xla")


def test_an_environment_that_is_not_there_is_refused(calls: list[str]) -> None:
    """``cluster_environment="xla"`` where torch_xla did not start the process is refused; the runtime is not asked."""
    with pytest.raises(ConfigurationError, match="torch_xla did not start this process"):
        Runtime(accelerator="xla", devices=1, cluster_environment="xla")
    assert not [name for name in calls if name.startswith("xr.")]
