"""Scripts with ``torch_hal_accelerate.Accelerator()``, started by ``accelerate launch``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from python_processes import run_python

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
