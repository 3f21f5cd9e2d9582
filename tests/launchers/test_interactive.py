"""``python -c`` and interactive sessions: processes are forked, and refused if the hardware is already in use."""

from __future__ import annotations

from pathlib import Path

import pytest
from python_processes import run_python

pytestmark = pytest.mark.usefixtures("started_not_forked")

TRAIN = """
import os, torch
from core import Runtime

def total(runtime):
    value = runtime.reduce(torch.tensor(float(runtime.process_index + 1)), reduction="sum")
    os.write(1, f"{runtime.process_index} of {runtime.num_processes}: {value.item()}\\n".encode())

runtime = Runtime(accelerator="cpu", strategy=STRATEGY, devices=3)
"""
IN_USE = """
runtime.plan.parts["accelerator"].fork_unsafe_reason = lambda: "the card is in use"
"""


@pytest.mark.slow
def test_code_from_the_command_line_forks(tmp_path: Path) -> None:
    """Functions defined in it run in three processes that are ranks of one run."""
    code = TRAIN.replace("STRATEGY", "'ddp_notebook'") + "runtime.launch(total)"
    ended = run_python("-c", code, cwd=tmp_path, leaves_nothing=True, warnings="ignore")
    assert sorted(ended.stdout.splitlines()) == [f"{rank} of 3: 6.0" for rank in range(3)]


def test_a_fork_after_the_hardware_was_used_is_refused(tmp_path: Path) -> None:
    """The error says what is in use and what to do; no process is started."""
    code = TRAIN.replace("STRATEGY", "'ddp_notebook'") + IN_USE + "runtime.launch(total)"
    ended = run_python("-c", code, cwd=tmp_path, expect=1, leaves_nothing=True, warnings="ignore")
    assert ended.stdout == ""
    last = ended.stderr.rstrip().splitlines()[-1]
    assert "LaunchError" in last
    assert "cannot fork this process: the card is in use. Restart the session" in last


def test_a_script_is_needed_to_start_one_again(tmp_path: Path) -> None:
    """``ddp`` would start the script again, and there is none: the error names the strategies that serve."""
    code = TRAIN.replace("STRATEGY", "'ddp'") + "runtime.launch()"
    ended = run_python("-c", code, cwd=tmp_path, expect=1, leaves_nothing=True, warnings="ignore")
    last = ended.stderr.rstrip().splitlines()[-1]
    assert "this is code given with '-c'" in last
    assert "strategy='ddp_notebook'" in last
