"""The command line of ``torch-hal run``: what it refuses, what it would start, and what the processes are told."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.environments.base import LAUNCHED
from core.environments.local import OWNER
from core.errors import ConfigurationError, CoreError
from core.run import parent_death
from core.run.__main__ import main
from core.run.options import parse
from core.run.planning import plan_run

SALLOC = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('this must not run')")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such.py"], "there is no script 'no-such.py' in "),
        (["--nnodes", "0", "-m", "x"], "--nnodes '0' must be a number of machines ≥ 1"),
        (["--nnodes", "3:2", "-m", "x"], "--nnodes '3:2'"),
        (["--nnodes", "2", "-m", "x"], "--nnodes 2 needs --rdzv-endpoint HOST:PORT"),
        (["--nnodes", "1:2", "-m", "x"], "--nnodes 1:2 needs --rdzv-endpoint HOST:PORT"),
        (["--rdzv-endpoint", "a:1", "-m", "x"], "--rdzv-endpoint is for several machines"),
        (["--local-addr", "a", "-m", "x"], "--local-addr is for several machines"),
        (["--rdzv-conf", "timeout", "-m", "x"], "--rdzv-conf 'timeout' must be settings such as"),
        (["--max-restarts", "-1", "-m", "x"], "--max-restarts -1 must be an integer ≥ 0"),
        (["-m", "--no-python", "x"], "-m and --no-python contradict each other"),
        (["--log-dir", __file__, "-m", "x"], "is a file. Give a folder"),
    ],
)
def test_invalid_arguments(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option and what was given; the exit code is 2."""
    with pytest.raises(ConfigurationError) as error:
        parse(arguments, "torch-hal run", {})
    assert says in str(error.value)
    assert main(arguments, "torch-hal run") == 2
    assert capsys.readouterr().err.startswith("torch-hal run: ")


def test_the_scripts_arguments_are_its_own(script: str) -> None:
    """What stands after the script is not read, even if it looks like an option of this command."""
    options = parse(["--devices", "2", script, "--devices", "4", "--dry-run", "-m"], "run", {})
    assert options.requested == {"devices": "2"}
    assert options.arguments == ("--devices", "4", "--dry-run", "-m")
    assert options.command() == [sys.executable, "-u", script, *options.arguments]
    assert parse(["-m", "a.b", "c"], "run", {}).command() == [sys.executable, "-u", "-m", "a.b", "c"]
    assert parse(["--no-python", "echo", "c"], "run", {}).command() == ["echo", "c"]


@pytest.mark.parametrize(
    ("arguments", "environ", "processes", "variables"),
    [
        ([], {}, 1, {"CORE_NUM_NODES": "1"}),
        (["--devices", "3"], {}, 3, {"CORE_DEVICES": "3", "CORE_NUM_NODES": "1"}),
        (["--devices", "4,2"], {}, 2, {"CORE_DEVICES": "4,2", "CORE_NUM_NODES": "1"}),
        ([], {"CORE_DEVICES": "2", "CORE_STRATEGY": "ddp_spawn"}, 2, {"CORE_NUM_NODES": "1"}),
        (["--strategy", "auto"], {"CORE_DEVICES": "2", "CORE_STRATEGY": "ddp"}, 2, {"CORE_NUM_NODES": "1"}),
        (
            ["--accelerator", "cpu", "--devices", "2", "--strategy", "ddp_sharded", "--precision", "bf16"],
            {"CORE_ACCELERATOR": "nonsense"},
            2,
            {
                "CORE_ACCELERATOR": "cpu",
                "CORE_DEVICES": "2",
                "CORE_NUM_NODES": "1",
                "CORE_STRATEGY": "ddp_sharded",
                "CORE_PRECISION": "bf16",
            },
        ),
        (
            ["--nnodes", "3", "--rdzv-endpoint", "a:1", "--devices", "2"],
            {"CORE_NUM_NODES": "7"},
            2,
            {"CORE_DEVICES": "2", "CORE_NUM_NODES": "3"},
        ),
        (["--nnodes", "1:3", "--rdzv-endpoint", "a:1"], {}, 1, {}),
        (["--devices", "2"], SALLOC, 2, {"CORE_DEVICES": "2", "CORE_NUM_NODES": "1"}),
    ],
)
def test_what_the_processes_are_told(
    arguments: list[str], environ: dict[str, str], processes: int, variables: dict[str, str], script: str
) -> None:
    """One process for each device; what was given becomes the variables that the front ends read, the rest stays."""
    run = plan_run(parse([*arguments, script], "run", environ), environ)
    assert (run.processes, run.variables) == (processes, variables)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strategy", "fspd"], "strategy='fspd': no installed or registered strategy"),
        (["--accelerator", "acmee"], "accelerator='acmee'"),
        (["--devices", "0"], "devices='0'"),
        (["--precision", "17"], "precision='17'"),
        (["--devices", "2", "--strategy", "single_device"], "single_device"),
    ],
)
def test_what_cannot_run_is_refused_before_a_process_starts(arguments: list[str], says: str, script: str) -> None:
    """Once, by name, and not by each process."""
    with pytest.raises(CoreError) as error:
        plan_run(parse([*arguments, script], "run", {}), {})
    assert says in str(error.value)


def test_ranks_of_another_run_are_not_passed_on(script: str) -> None:
    """A rank of a run may start a run of its own."""
    assert set(plan_run(parse([script], "run", {}), {LAUNCHED: "{}", OWNER: "1/ab"}).removed) == {LAUNCHED, OWNER}


def test_dry_run(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The Plan, the command and the variables; nothing is started, and this process's variables stay."""
    before = dict(os.environ)
    assert main(["--devices", "3", "--strategy", "ddp", "--dry-run", script, "--lr", "a b"]) == 0
    out = capsys.readouterr().out
    assert "requested by strategy='ddp'" in out
    assert "cpu, cpu, cpu" in out
    assert f"3 process(es) run: {shlex.join([sys.executable, '-u', script, '--lr', 'a b'])}" in out
    assert "  CORE_STRATEGY=ddp\n" in out
    assert dict(os.environ) == before


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_process_that_is_tied_ends_with_its_parent(tmp_path: Path) -> None:
    """SIGKILL of the parent, which no one can handle, ends the command too, and one that starts too late."""
    code = f"""
import os, subprocess, sys
command = [sys.executable, "-I", "-S", {parent_death.__file__!r}, str(os.getpid()), "sleep", "300"]
child = subprocess.Popen(command, start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_for(lambda: Path(f"/proc/{child}/cmdline").read_bytes() == b"sleep\x00300\x00")
        parent.kill()
    wait_for(lambda: not is_running(child))
    late = subprocess.run(
        [sys.executable, "-I", "-S", parent_death.__file__, "1", "sleep", "300"], timeout=30, check=False
    )
    assert late.returncode == 137


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("text", "after", "said"),
    [
        ("import core", ["--devices", "2", "--strategy=ddp", "--lr", "1"], "--devices and --strategy after "),
        ("import core", ["--lr", "1"], ""),
        ("import sys; print(sys.argv)", ["--devices", "2"], ""),
        ("from core.cli import CLI", ["--devices", "2"], ""),
    ],
)
def test_options_after_a_script_that_reads_none(
    text: str, after: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be ignored in silence: a note says where they belong. A script that reads its own gets them."""
    (tmp_path / "train.py").write_text(text)
    assert main(["--dry-run", str(tmp_path / "train.py"), *after], "torch-hal run") == 0
    printed = capsys.readouterr().err
    assert printed.startswith(f"torch-hal run: {said}") if said else not printed


@pytest.mark.parametrize(
    ("text", "arguments", "environ", "processes", "nodes"),
    [
        ("devices = 3\nstrategy = 'ddp_sharded'", [], {}, 3, "1"),
        ("devices = 3", ["--devices", "2"], {}, 2, "1"),
        ("devices = 3", [], {"CORE_DEVICES": "2"}, 2, "1"),
        ("num_nodes = 2", ["--rdzv-endpoint", "a:1"], {}, 1, "2"),
        ("num_nodes = 2", ["--nnodes", "1"], {}, 1, "1"),
        ("num_nodes = 2", ["--rdzv-endpoint", "a:1"], {"CORE_NUM_NODES": "3"}, 1, "3"),
    ],
)
def test_a_config_file(
    text: str, arguments: list[str], environ: dict[str, str], processes: int, nodes: str, script: str, tmp_path: Path
) -> None:
    """By option or variable: it says what neither an option nor a variable does, and its path becomes absolute."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    relative = os.path.relpath(path)
    for options, given in ((["--config", relative], environ), ([], {**environ, "CORE_CONFIG": relative})):
        run = plan_run(parse([*options, *arguments, script], "run", given), given)
        assert run.processes == processes
        assert (run.variables["CORE_CONFIG"], run.variables["CORE_NUM_NODES"]) == (str(path), nodes)


def test_a_config_file_is_refused_by_name(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any process starts: a missing file, a wrong value, several machines without a place to meet."""
    path = tmp_path / "run.toml"
    for text, says in (
        (None, f"config file {str(path)!r} (environment variable CORE_CONFIG): there is no file"),
        ("strategy = 'dpp'", f"{path}: strategy='dpp'"),
        ("num_nodes = 2", f"{path}: num_nodes=2 needs --rdzv-endpoint HOST:PORT"),
        ("num_nodes = 2", f"--nnodes 1:3 contradicts {path}: num_nodes=2. Leave out one of them."),
    ):
        if text is not None:
            path.write_text(text)
        elastic = ["--nnodes", "1:3", "--rdzv-endpoint", "a:1"] if "1:3" in says else []
        assert main(["--config", str(path), *elastic, script], "torch-hal run") == 2
        assert f"torch-hal run: {says}" in capsys.readouterr().err
