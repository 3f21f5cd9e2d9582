"""A process that does not come to a collective: the job ends, and names it, the call and its place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from faults.dying import cause_in

from core import Trainer
from core.callbacks import Watchdog
from core.errors import ConfigurationError

from .conftest import SCRIPTS, processes_with, run_script

SECONDS = 60
"""Allowed from the hang, with its limit of 5 or 8 seconds, until all are gone, on a machine that does other things."""


def run_hanging(out: Path, script: str, *arguments: str, expect: int = 1) -> str:
    """What a run prints to standard error; it must leave no process."""
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / script), *arguments]
    environ = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environ, cwd=out, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == expect, ended.stderr
    while processes_with(out):
        time.sleep(0.05)
    died = re.findall(r"dying at ([\d.]+)", ended.stdout)
    assert not died or time.monotonic() - float(died[0]) < SECONDS
    return ended.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("started_not_forked")
@pytest.mark.parametrize(
    ("launcher", "how"),
    [
        ("script", "sleep"),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in (("fork", "sleep"), ("script", "stop"))),
    ],
)
def test_a_collective_over_its_limit(launcher: str, how: str, tmp_path: Path) -> None:
    """One error says who did not come to which call, and shows its stack; a stopped process cannot tell."""
    error = run_hanging(tmp_path, "hanging.py", launcher, how)
    cause = cause_in(error)
    assert re.search(r"^rank [02] .*timed out in \w+ \(hanging.py:\d+ in work\); ", cause), error
    if how == "stop":
        assert "rank(s) 1 did not answer: stopped" in cause
    else:
        assert re.search(r"rank 1 did not come: it is at hanging.py:\d+ in lingers", cause)
        shown = re.sub(r"(?m)^\[rank\d\]: ", "", error)  # what is in front of the lines of a process that was forked
        assert re.search(r"\[rank1\] is here:\n(.*\n)+.*in lingers\n +time.sleep\(1000\)", shown)
    if launcher == "script":
        assert error.count("is here:") <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("started_not_forked")
def test_the_watchdog_ends_a_fit(tmp_path: Path) -> None:
    """A save that is slower than its limit does not count; a batch that does not come does."""
    error = run_hanging(tmp_path, "hanging_fit.py", "ddp", "hangs")
    assert re.search(r"^rank [01] of 2 failed: no batch within 5 s \(Watchdog\)", error, re.MULTILINE), error
    assert re.search(r"rank 1 did not come: it is after 6 batch\(es\) at hanging_fit.py:\d+ in training_step", error)
    assert "rank 0 did not come" not in error
    assert (tmp_path / "saved").exists()


def test_limits_are_positive() -> None:
    """The error names the argument."""
    with pytest.raises(ConfigurationError, match="step=5: must be a positive timedelta"):
        Watchdog(step=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="setup="):
        Watchdog(setup=timedelta(0))


ONLY_ONE = [
    # processes, when, the rank that calls the method, the method, what the others call; who has ended instead
    ((2, "after", 0, "validate"), "1"),
    ((2, "before", 0, "validate"), "fit"),
    *(
        pytest.param(arguments, instead, marks=pytest.mark.slow)
        for arguments, instead in (
            ((3, "after", 1, "fit"), "0, 2"),
            ((2, "never", 0, "gather"), "1"),
            ((3, "between", 2, "test"), "fit"),
            ((2, "after", 0, "validate", "test"), "test"),
        )
    ),
    *(
        pytest.param(arguments, instead, marks=pytest.mark.exhaustive)
        for arguments, instead in (
            ((2, "after", 1, "test"), "0"),
            ((2, "after", 0, "predict"), "1"),
            ((2, "never", 0, "validate"), "1"),
            ((2, "before", 1, "predict"), "fit"),
            ((2, "between", 0, "reduce"), "fit"),
        )
    ),
]


@pytest.mark.parametrize("launcher", ["script", pytest.param("torchrun", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("arguments", "instead"), ONLY_ONE, ids=lambda given: given if isinstance(given, str) else " ".join(map(str, given))
)
def test_a_method_that_one_rank_alone_calls(
    arguments: tuple[Any, ...], instead: str, launcher: str, tmp_path: Path
) -> None:
    """It fails soon, and says which method, in which line, which ranks do not come, and what they do instead."""
    processes, _, rank, method, *_others = arguments
    torchrun = processes if launcher == "torchrun" else 0
    start = time.monotonic()
    ended = run_script(tmp_path, "alone.py", *map(str, arguments), torchrun=torchrun, expect=1)
    assert time.monotonic() - start < 120  # not the half hour that a process waits; the start takes most of it
    script = SCRIPTS / "alone.py"
    line = next(number for number, text in enumerate(script.read_text().splitlines(), 1) if "calls[method]" in text)
    of_rank = f"{'Trainer' if hasattr(Trainer, method) else 'Runtime'}.{method} ({script}:{line})"
    if instead[0].isdigit():
        ended_first = "|".join([*instead.split(", "), instead])  # it does not wait for the note of a second one
        said = f"{of_rank} needs every process, and rank(s) "
        assert re.search(rf"needs every process, and rank\(s\) ({ended_first}) of {processes} have", ended.stderr)
    else:
        assert "the processes have called different methods: " in ended.stderr
        assert f"rank {rank}: {of_rank}" in ended.stderr
        said = f": Trainer.{instead} ({script}:"
    assert said in ended.stderr


ELSEWHERE = [
    # processes, the rank that is elsewhere, what it does, what the others do, the strategy unless it is ddp; what is
    # said of it, and of the others
    ((2, 0, "hook", ""), "strategy.barrier (", "backward in Trainer.fit ("),
    *(
        pytest.param(arguments, *said, marks=pytest.mark.slow)
        for arguments, *said in (
            ((3, 1, "reduce", "backward"), "Runtime.reduce (", ""),
            ((3, 1, "save_state", "wait"), "Runtime.save_state (", "Runtime.wait_for_everyone ("),
            ((2, 1, "dist.barrier", "reduce"), "barrier at elsewhere.py", "Runtime.reduce ("),
            ((2, 0, "hook", "", "ddp_spawn"), "strategy.barrier (", "backward in fit. Call the same"),
            ((2, 1, "save_state", "wait", "ddp_fork"), "Runtime.save_state (", "Runtime.wait_for_everyone ("),
        )
    ),
    *(
        pytest.param(arguments, *said, marks=pytest.mark.exhaustive)
        for arguments, *said in (
            ((2, 1, "backward", "reduce"), "", "Runtime.reduce ("),
            ((2, 1, "save_state", "backward"), "Runtime.save_state (", ""),
            ((2, 1, "prepare", "wait"), "Runtime.prepare (", "Runtime.wait_for_everyone ("),
            ((2, 0, "strategy.all_gather", "prepare"), "strategy.all_gather (", "Runtime.prepare ("),
            ((2, 1, "reduce", "backward", "ddp_spawn"), "Runtime.reduce (", ""),
        )
    ),
]


@pytest.mark.parametrize(
    ("arguments", "own", "others"),
    ELSEWHERE,
    ids=lambda given: " ".join(map(str, given)) if isinstance(given, tuple) else "",
)
def test_processes_that_wait_in_different_calls(
    arguments: tuple[Any, ...], own: str, others: str, tmp_path: Path
) -> None:
    """The run ends soon; what it ends with names the call and the line of each process."""
    ended = run_script(tmp_path, "elsewhere.py", *map(str, arguments), expect=1)
    cause = cause_in(ended.stderr)
    assert "failed: processes are in different collectives: " in cause, ended.stderr
    assert ended.stderr.count("in different collectives") == 1
    processes, rank, *_ = arguments
    rest = [str(each) for each in range(processes) if each != rank]
    arrived = "|".join([", ".join(rest), *rest])  # on a busy machine, a third one may be on its way
    assert f"rank {rank}: {own}" in cause
    assert re.search(rf"ranks? ({arrived}): {re.escape(others)}", cause), cause
    assert "is through" not in ended.stdout


@pytest.mark.slow
def test_a_process_that_ends_while_another_waits_to_save(tmp_path: Path) -> None:
    """The one that saves alone says that process 0 has ended, in the line of its call."""
    ended = run_script(tmp_path, "elsewhere.py", "2", "1", "save_state", "nothing", expect=1)
    cause = cause_in(ended.stderr)
    assert "rank 1 of 2 failed: LaunchError: rank 0 has ended its script, or torn down" in cause
    assert "at " + str(SCRIPTS / "elsewhere.py") in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_a_process_whose_function_has_returned_while_another_waits(strategy: str, tmp_path: Path) -> None:
    """What the run ends with names the one that is through, and the line in which the other one waits."""
    ended = run_script(tmp_path, "elsewhere.py", "2", "0", "reduce", "nothing", strategy, expect=1)
    place = rf"{re.escape(str(SCRIPTS / 'elsewhere.py'))}, and waits for rank 1"
    assert re.search(rf"^rank 0 failed: rank 1 has ended .* is in line \d+ of {place}", ended.stderr.splitlines()[-1])


@pytest.mark.slow
def test_a_process_that_is_late_is_not_blamed(tmp_path: Path) -> None:
    """It works for long, in backward passes of its own, saves alone, and then comes."""
    ended = run_script(tmp_path, "elsewhere.py", "3", "0", "work+save_state+reduce", "reduce")
    assert ended.stdout.count("is through") == 3
    assert "different collectives" not in ended.stderr
