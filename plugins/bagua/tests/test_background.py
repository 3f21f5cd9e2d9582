"""What runs next to the training thread: no update is lost, nothing waits for ever, and all of it ends with the run."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from torch_hal_bagua.gate import StepGate

from .groups import run_group


@pytest.mark.parametrize("arguments", [["race"], ["race", "parts"]])
def test_no_update_is_lost(tmp_path: Path, arguments: list[str]) -> None:
    """An averaging that comes between an optimizer's reading and writing a weight changes it before or after both.

    So too where a loss is computed from parts of the module, without its own forward pass.
    """
    run_group(tmp_path, "background.py", *arguments, processes=2)


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_abort_and_resume(tmp_path: Path, processes: int) -> None:
    """After abort only steps change weights; after resume all reach the mean; one process is enough to abort."""
    run_group(tmp_path, "background.py", "abort", processes=processes)


def test_twenty_runs_end(tmp_path: Path) -> None:
    """Runs with uneven numbers of steps, aborts, resumes and early ends all end."""
    for printed in run_group(tmp_path, "background.py", "life", processes=3):
        assert printed == "all runs ended\n"


def test_a_script_that_just_ends(tmp_path: Path) -> None:
    """Without teardown the averaging ends before the interpreter does, which it would else abort."""
    for printed in run_group(tmp_path, "background.py", "open_ended", processes=2):
        assert printed == "through\n"


def test_an_error_ends_all(tmp_path: Path) -> None:
    """An error in one process ends both in bounded time, and is the one that is shown."""
    begin = time.monotonic()
    outs = run_group(tmp_path, "background.py", "error", processes=2, expect=1)
    assert time.monotonic() - begin < 60
    assert "ArithmeticError: of this rank's own" in outs[1]
    assert "could not average its weights with the other processes" in outs[0]


@pytest.mark.parametrize(
    "algorithm",
    [
        "low_precision_decentralized",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("bytegrad", "decentralized")),
    ],
)
def test_a_death_is_an_error(tmp_path: Path, algorithm: str) -> None:
    """A process that dies in the middle of an exchange makes the others fail, with what the collective says."""
    outs = run_group(tmp_path, "background.py", "killed", algorithm, processes=2, expect=None)
    assert "rank 0 of 2 ends because it lost another process" in outs[0]
    assert "Connection" in outs[0]


def test_gate_keeps_step_and_change_apart() -> None:
    """A change waits for a step's end; a step that is to begin lets a waiting change go first."""
    gate, order = StepGate(), []

    def change() -> None:
        with gate.between_steps():
            order.append("change")

    gate.enter_step()
    thread = threading.Thread(target=change)
    thread.start()
    deadline = time.monotonic() + 10
    while not gate._guests and time.monotonic() < deadline:
        time.sleep(0.001)
    order.append("step")
    gate.leave_step()
    gate.enter_step()
    order.append("next step")
    gate.leave_step()
    thread.join()
    assert order == ["step", "change", "next step"]
