"""Signals to all processes of a fit at once, as a terminal sends them; tests/trainer/test_signals.py has the others."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from .signalling import KINDS, MOMENTS, SCRIPT, TARGETS, send, start, wait_until_gone

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds processes in /proc")

SLOW = (("SIGINT", "group", "step"), ("SIGTERM twice", "group", "start"))
CASES = [
    pytest.param(*case, marks=pytest.mark.slow if case in SLOW else pytest.mark.exhaustive)
    for case in ((kind, target, moment) for kind in KINDS for target in TARGETS for moment in MOMENTS)
]
CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 0, "SIGTERM twice": 143}


@pytest.mark.parametrize(("kind", "target", "moment"), CASES)
def test_a_signal_to_a_fit(kind: str, target: str, moment: str, tmp_path: Path) -> None:
    """The exit code says which, nothing is left, and a checkpoint is there unless a second signal came."""
    ended = send(kind, target, moment, tmp_path)
    assert ended.code == CODES[kind], ended.said
    assert ended.are_all_gone
    assert ended.is_saved == (kind != "SIGTERM twice"), ended.said


@pytest.mark.slow
@pytest.mark.parametrize("where", ["signal", "save"])
@pytest.mark.parametrize(
    "launcher",
    [
        ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"],
        pytest.param(["-m", "core.run", "--devices", "2"], marks=pytest.mark.exhaustive),
    ],
    ids=["torchrun", "torch-hal run"],
)
def test_a_process_that_another_one_waits_for_is_killed(launcher: list[str], where: str, tmp_path: Path) -> None:
    """In a save, or for its answer to a signal: the other one ends before the launcher kills it after 30 seconds."""
    process = start(tmp_path, *launcher, str(SCRIPT.with_name("left_alone.py")), where)
    code, are_all_gone = wait_until_gone(process, tmp_path)
    ended = time.monotonic()
    said = (tmp_path / "output").read_text() + (tmp_path / "error").read_text()
    assert are_all_gone
    if "torch.distributed.run" in launcher:
        assert code == 1
        # The lost peer, or torchrun's first signal, whichever it has met first; -9 would be torchrun's last word.
        assert re.findall(r"rank +: 1 .*\n.*exitcode +: (-?\d+) ", said) in (["1"], [str(-signal.SIGTERM)]), said
    else:
        assert code == 137
        assert ended - float(re.findall(r"dying at ([\d.]+)", said)[0]) < 20
