"""Running the scripts of this folder in separate processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from python_processes import run_python

SCRIPTS = Path(__file__).parent / "scripts"

State = dict[str, torch.Tensor]


def run_script(
    out: Path, script: str, *arguments: str, torchrun: int = 0, expect: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, under torchrun with that many processes if any, its files going to ``out``."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(torchrun), "--rdzv_backend", "c10d"]
    launcher += ["--rdzv_endpoint", "127.0.0.1:0"]
    command = [*(launcher if torchrun else []), SCRIPTS / script, *arguments]
    return run_python(*command, cwd=out, warnings="ignore", expect=expect, timeout=240, env={"OUT": str(out)})


def states(out: Path) -> dict[int, State]:
    """The parameters that processes left in ``out``, by rank."""
    return {int(path.stem.removeprefix("rank")): torch.load(path) for path in sorted(out.glob("rank*.pt"))}


def assert_same(one: State, other: State) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.fixture(scope="session")
def hand_written(tmp_path_factory: pytest.TempPathFactory) -> State:
    """What a hand-written DistributedDataParallel script ends with on two processes; both agree."""
    out = tmp_path_factory.mktemp("hand_written")
    run_script(out, "hand_written.py", torchrun=2)
    by_rank = states(out)
    assert_same(by_rank[0], by_rank[1])
    return by_rank[0]


def processes_with(out: Path) -> list[int]:
    """The processes that still run a script of this folder whose files go to ``out``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it has ended, or is another user's
            continue
        if f"OUT={out}\0".encode() in environ and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found
