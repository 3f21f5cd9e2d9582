"""What takes a separate process: SPMD mode, which does not end, other variables, and torch_xla.launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import RunScript


@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-6), ("bf16-mixed", 0.05)])
def test_spmd_equals_the_plain_loop(run_script: RunScript, tmp_path: Path, precision: str, tolerance: float) -> None:
    """One process on four virtual devices trains as one device does: the batch is split, parameters are everywhere."""
    told = run_script("spmd.py", precision, str(tmp_path / "checkpoint"), CPU_NUM_DEVICES="4")
    assert told["devices"] == ["xla:0", "xla:1", "xla:2", "xla:3"]
    assert (told["world_size"], told["steps"]) == (1, 16)
    assert told["furthest"] <= tolerance
    assert told["furthest_clipped"] <= tolerance
    assert told["batch"].startswith("{devices=[4,1]")
    assert told["parameters"] in ([""], ["{replicated}"], ["", "{replicated}"])
    assert "sharding={devices=[4,1]0,1,2,3}" in told["compiled"]
    assert told["loaded"]
    content = torch.load(tmp_path / "checkpoint", weights_only=True)
    assert {tensor.device.type for tensor in content["model"].values()} == {"cpu"}


def test_auto_takes_the_cpu_as_xla_only_if_told_to(run_script: RunScript) -> None:
    """``auto`` is XLA's CPU where ``PJRT_DEVICE`` says so; without it, the plain CPU, and ``xla`` is an error."""
    assert run_script("plan.py", "auto")["accelerator"] == "xla"
    assert run_script("plan.py", "auto")["strategy"] == "single_xla"
    assert run_script("plan.py", "auto", PJRT_DEVICE=None)["accelerator"] == "cpu"
    assert "no device found" in run_script("plan.py", "xla", PJRT_DEVICE=None)["error"]


def test_several_processes_on_the_cpu_are_refused(run_script: RunScript) -> None:
    """torch_xla's processes of CPU devices are threads that wait for one another for ever; they are not started."""
    told = run_script("plan.py", "xla", CPU_NUM_DEVICES="2")
    assert "does not support collectives" in told["error"]


def test_a_backward_pass_before_the_runtime_is_named(run_script: RunScript) -> None:
    """torch's own limit, an assertion of its internals, is an error that explains it, when the run starts."""
    told = run_script("plan.py", "xla", "backward first")
    assert "before torch_xla's runtime" in told["error"]


def test_launched_process(run_script: RunScript) -> None:
    """A process of torch_xla's knows by its runtime who it is; its error ends the launch, and is shown."""
    told = run_script("launched.py")
    assert told["environment"] == "xla"
    assert (told["ranks"], told["sizes"]) == ([0, 0, 0], [1, 1, 1])
    assert (told["device"], told["address"], told["gathered"]) == ("xla:0", "127.0.0.1", ["said"])
    assert told["failed"].startswith("rank 0 failed: ValueError: enough")


def test_debug(run_script: RunScript) -> None:
    """``xla_debug`` trains as ``xla`` does, and torch_xla says why it compiled what; its variable is left unset."""
    told = run_script("debug.py")
    assert told["furthest"] <= 1e-6
    assert "Compilation Analysis" in told["stderr"]
    assert told["left"] is None
