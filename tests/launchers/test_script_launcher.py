"""The script that is started again for each further process, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from marked_runs import SCRIPTS, running

from core.errors import LaunchError
from core.strategies.launchers import ScriptLauncher, attach_lifeline, script_command

pytestmark = pytest.mark.usefixtures("started_not_forked")


@pytest.mark.parametrize(
    ("command", "spec"),
    [(["ranks.py"], False), (["-m", "ranks"], True)],
    ids=["script", "module"],
)
def test_every_rank_runs_what_the_first_was_started_as(command: list[str], spec: bool) -> None:
    """Options, arguments and ``-m`` are the same in both; both end by themselves, with nothing left, code 0."""
    with running("-O", "-X", "utf8", "-W", "error::UserWarning", *command, "both_finish", "a b", "-x") as run:
        assert run.end() == 0, run.error
        assert run.alive() == []
    started = sorted((fact for fact in run.facts if "argv" in fact), key=lambda fact: int(fact["rank"]))
    assert [fact["rank"] for fact in started] == [0, 1]
    for fact in started:
        assert (fact["argv"], fact["optimize"], fact["xoptions"]) == (["both_finish", "a b", "-x"], 1, {"utf8": True})
        assert (fact["main"], fact["spec"]) == ("__main__", spec)
    assert [fact["gathered"] for fact in run.facts if "gathered" in fact] == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "command",
    [
        [str(SCRIPTS / "ranks.py")],
        pytest.param(["ranks.py"], marks=pytest.mark.slow),
        pytest.param(["-m", "ranks"], marks=pytest.mark.slow),
    ],
    ids=["absolute", "relative", "module"],
)
def test_a_script_that_changes_its_directory(command: list[str], tmp_path: Path) -> None:
    """Hydra does so before the Trainer is created: every rank begins where the first began, and goes where it goes."""
    with running(*command, "elsewhere", str(tmp_path)) as run:
        assert run.end() == 0, run.error
    places = {fact["rank"]: (fact["began"], fact["directory"]) for fact in run.facts if "directory" in fact}
    assert places == dict.fromkeys(range(2), (str(SCRIPTS), str(tmp_path)))


@pytest.mark.slow
def test_runs_one_after_another_use_one_store() -> None:
    """A second and a third process group form in the same processes, each with its own collectives."""
    with running("ranks.py", "runs_one_after_another") as run:
        assert run.end() == 0, run.error
        assert run.alive() == []
    values = {(fact["run"], fact["rank"]): fact["value"] for fact in run.facts}
    assert values == {(number, rank): 1.0 + 2 * number for number in range(3) for rank in range(2)}


def test_another_ranks_exit_code_becomes_that_of_the_script() -> None:
    """The first process does not end with 0 when a later one exits with another code, even at the very end."""
    with running("ranks.py", "exit_code") as run:
        assert run.end() == 7
        assert "rank 1" in run.error
        assert "exited with code 7" in run.error


def test_killing_another_rank_ends_the_run() -> None:
    """KILL of rank 1 while rank 0 waits for it in a collective: both are gone within seconds, rank 1 is named."""
    with running("ranks.py", "both_block") as run:
        os.kill(run.until_ready()[1], signal.SIGKILL)
        assert run.end() == 128 + signal.SIGKILL
        assert run.gone_within(5)
    assert "rank 1" in run.error
    assert "was killed by SIGKILL" in run.error


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_outlives_the_first(number: signal.Signals) -> None:
    """However the first process is ended, the others follow within seconds."""
    with running("ranks.py", "both_block") as run:
        os.kill(run.until_ready()[0], number)
        assert run.end() == -number
        assert run.gone_within(10)


@pytest.mark.slow
def test_an_exception_in_another_rank_ends_the_run() -> None:
    """Rank 0 comes out of the collective that rank 1 will not join; rank 1's own traceback is shown."""
    with running("ranks.py", "rank_1_raises") as run:
        assert run.end() == 1
        assert run.gone_within(5)
    assert "ValueError: rank 1 has no idea" in run.error
    assert "terminate called" not in run.error


@pytest.mark.slow
def test_a_rank_that_fails_is_not_held_by_a_collective_under_way() -> None:
    """An exception ends a rank that has begun what no one completes, and the run, within the time allowed."""
    with running("ranks.py", "rank_1_raises_with_work_under_way") as run:
        assert run.end() == 1
        assert run.gone_within(5)
    assert "ValueError: rank 1 has no idea" in run.error


@pytest.mark.slow
def test_a_rank_that_does_not_notice_is_ended() -> None:
    """When a rank dies and the first process is stuck, it is ended with that rank's code after the grace period."""
    with running("ranks.py", "rank_0_is_stuck") as run:
        assert run.end() == 128 + signal.SIGKILL
        assert "was still blocked after" in run.error
        assert run.gone_within(5)


@pytest.mark.slow
def test_a_rank_that_does_not_end_is_ended() -> None:
    """When all is well but another rank does not end, the wait for it is bounded, and an error."""
    with running("ranks.py", "rank_1_lingers") as run:
        assert run.end() == 1
        assert run.gone_within(5)
    assert "rank(s) 1 did not end within 1 s" in run.error


@pytest.mark.slow
def test_a_collective_that_failed_can_be_explained() -> None:
    """After an error from a collective, ``check`` tells which rank was lost and how."""
    with running("ranks.py", "rank_0_asks") as run:
        os.kill(run.until_ready()[1], signal.SIGTERM)
        run.end()
    errors = [fact["error"] for fact in run.facts if "error" in fact]
    assert len(errors) == 1
    assert "rank 1" in errors[0]
    assert "was killed by SIGTERM" in errors[0]


@pytest.fixture
def main_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = __file__
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-O"],
        ["-X", "utf8", "-Wignore", "-W", "error", "-bb"],
        ["-Xutf8", "-OO", "--check-hash-based-pycs", "always", "-I"],
    ],
)
@pytest.mark.parametrize("program", [[__file__, "-c", "x"], ["-m", "some.module", "-c"], ["-um", "some.module"]])
def test_a_script_is_started_again_as_it_was(main_module: ModuleType, options: list[str], program: list[str]) -> None:
    """Every option of the interpreter and every argument is kept; options of the program are not taken for Python's."""
    assert script_command(["python", *options, *program], "ddp") == [sys.executable, *options, *program]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["python"], "an interactive session"),
        (["python", "-i", "-X", "utf8"], "an interactive session"),
        (["python", "-c", "import core"], "'-c'"),
        (["python", "-Oc", "import core"], "'-c'"),
        (["python", "-"], "standard input"),
    ],
)
def test_what_is_no_script_is_refused(main_module: ModuleType, argv: list[str], found: str) -> None:
    """The error says what was found instead, and which strategies serve there."""
    with pytest.raises(LaunchError, match=found) as raised:
        script_command(argv, "acme")
    for valid in ("strategy='acme' starts", "ddp_notebook", "ddp_spawn", "torchrun"):
        assert valid in str(raised.value)


def test_a_notebook_is_refused(main_module: ModuleType) -> None:
    """A kernel is started as a module, but what it runs is not a file."""
    del main_module.__file__
    with pytest.raises(LaunchError, match="an interactive session"):
        script_command(["python", "-m", "ipykernel_launcher", "-f", "kernel.json"], "acme")


def test_a_script_out_of_sight_is_refused(
    main_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A relative path after a change of directory would start nothing, or something else."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError, match=r"no such file.*absolute path"):
        script_command(["python", "train.py"], "acme")


def test_a_number_of_processes_below_one_is_refused() -> None:
    """The message names the argument and the value."""
    with pytest.raises(LaunchError, match=r"num_processes must be .* got 0"):
        ScriptLauncher(0, lambda rank: {}, strategy="ddp")


def test_a_lifeline_is_for_one_process_only() -> None:
    """A program that inherits the variable from the process it was meant for is not ended with another's parent."""
    environ = {"CORE_LIFELINE": "1" if os.getppid() != 1 else "2", "OTHER": "kept"}
    assert not attach_lifeline(environ)
    assert environ == {"OTHER": "kept"}
    assert not attach_lifeline(environ)


def test_a_launcher_that_is_gone_before_its_process_looks() -> None:
    """A process whose launcher died while it was still importing ends, rather than wait for the others."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    waits = "import time, core.strategies.launchers; time.sleep(400)"
    done = subprocess.run(
        [sys.executable, "-c", waits],
        env={**os.environ, "CORE_LIFELINE": str(gone.pid)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == -signal.SIGTERM
    assert f"process {gone.pid}, which started it, has ended" in done.stderr
