"""Scripts with ``torch_hal_accelerate.Accelerator()``, started by ``accelerate launch``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

from torch_hal.errors import ConfigurationError

from .conftest import SCRIPTS

LAUNCH = ("-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1", "--dynamo_backend", "no")


def launch(out: Path, *options: str, expect: int = 0, **variables: str) -> Any:
    """Run the script by ``accelerate launch options``; what its process 0 said, or the error's text."""
    env = {"OUT": str(out), "ACME_DEVICES": "2", **variables}
    command = (*LAUNCH, *options, SCRIPTS / "launched.py")
    done = run_python(*command, cwd=out, timeout=380, warnings="ignore", env=env, expect=expect)
    return done.stderr if expect else json.loads((out / "said.json").read_text())


def test_two_cards(tmp_path: Path) -> None:
    """It starts a process for each card, and its precision is understood."""
    said = launch(tmp_path, "--multi_gpu", "--mixed_precision", "bf16", CORE_ACCELERATOR="acme")
    assert (said["device"], said["world"], said["mixed_precision"]) == ("acme:0", 2, "bf16")
    assert 0 < said["distance"] < 5e-3


def test_two_processes_of_a_cpu_next_to_cards(tmp_path: Path) -> None:
    """``--cpu`` starts one process; torch-hal starts the other if it is told so, and weights are those of one."""
    said = launch(tmp_path, "--cpu", "--mixed_precision", "no", CORE_DEVICES="2")
    assert (said["device"], said["world"]) == ("cpu:0", 2)
    assert said["distance"] < 1e-6


def test_a_number_of_processes_without_effect(tmp_path: Path) -> None:
    """``--cpu --num_processes 2`` alone, by which Accelerate trains in one process without an error, is refused."""
    assert "starts one process only" in launch(tmp_path, "--cpu", "--mixed_precision", "no", expect=1)


LAUNCHED = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
"""What ``accelerate launch`` sets for a process that it starts without ranks."""


def test_one_process_uses_one_card(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its number of processes holds, though there are more cards; the log says how to use all."""
    from torch_hal_accelerate.planning import make_plan

    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert make_plan(accelerator="acme").devices == ("acme:0",)
    assert "one of 2 devices is used. For all, pass --multi_gpu" in caplog.text
    assert len(make_plan(accelerator="acme", devices=2).devices) == 2
    monkeypatch.setenv("CORE_DEVICES", "-1")
    assert len(make_plan(accelerator="acme").devices) == 2


def test_several_processes_without_multi_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate sets an address then, and starts one process."""
    from torch_hal_accelerate.planning import make_plan

    for name, value in {**LAUNCHED, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"unless --multi_gpu \(distributed_type: MULTI_GPU\) is given"):
        make_plan(accelerator="acme")


@pytest.mark.parametrize(
    ("lines", "world"),
    [("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16", 2), ("num_processes: 1", 1)],
)
def test_a_configuration_file(tmp_path: Path, lines: str, world: int) -> None:
    """Its numbers hold, on two cards."""
    config = tmp_path / "config.yaml"
    common = ("compute_environment: LOCAL_MACHINE", "num_machines: 1", "use_cpu: false")
    kind = () if "distributed_type" in lines else ("distributed_type: 'NO'", "mixed_precision: 'no'")
    config.write_text("\n".join((*common, *kind, lines)))
    env = {"OUT": str(tmp_path), "ACME_DEVICES": "2", "CORE_ACCELERATOR": "acme"}
    env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = "4"
    command = ("-m", "accelerate.commands.launch", "--config_file", config, SCRIPTS / "launched.py")
    run_python(*command, cwd=tmp_path, timeout=380, warnings="ignore", env=env)
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["device"], said["world"]) == ("acme:0", world)
    assert said["mixed_precision"] == ("bf16" if world == 2 else "no")
    assert said["accumulates"] == 4
