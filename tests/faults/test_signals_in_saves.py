"""A signal while a checkpoint is written in the background: it is committed whole, and so is the one of the signal."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from core.checkpoints import is_committed, latest, read_manifest

from .killing import step_of
from .signalling import start, wait_until_gone
from .small import IOS

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds processes in /proc")

SCRIPT = Path(__file__).parent / "scripts" / "writes_slowly.py"
START_SECONDS = 120.0
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node={}", "--standalone"],
    "torch-hal run": ["-m", "core.run", "--devices", "{}"],
}
SETUPS = [
    ("single_device", 1, "torch"),
    ("ddp", 2, "torch"),
    ("ddp", 3, "sharded"),
    ("ddp_fork", 2, "safetensors"),
    ("ddp_fork", 3, "torch"),
    ("ddp_spawn", 2, "sharded"),
    ("torchrun", 3, "torch"),
    ("torch-hal run", 2, "sharded"),
    ("torch-hal run", 3, "torch"),
]
SLOW = ("ddp_fork", 3, "torch", "SIGTERM", "last rank")
CASES = [
    pytest.param(*setup, kind, target, marks=pytest.mark.slow if case == SLOW else pytest.mark.exhaustive)
    for setup in SETUPS
    for kind in ("SIGTERM", "SIGINT")
    for target in ("last rank", "launcher", "group")
    if setup[1] > 1 or target == "launcher"
    for case in [(*setup, kind, target)]
]


def code_of(setup: str, kind: str, target: str) -> int:
    """torchrun's own agent ends with 1 for a process that failed, and by the exception of a signal that it gets."""
    return 1 if setup == "torchrun" else 128 + signal.Signals[kind]


@pytest.mark.parametrize(("setup", "processes", "io", "kind", "target"), CASES)
def test_a_signal_while_a_thread_writes(
    setup: str, processes: int, io: str, kind: str, target: str, tmp_path: Path
) -> None:
    """Nothing is left of the write, each checkpoint is of one step, and the last is the one of the signal."""
    launcher = [part.format(processes) for part in LAUNCHERS.get(setup, [])]
    process = start(tmp_path, *launcher, str(SCRIPT), "ddp" if setup in LAUNCHERS else setup, str(processes), io)
    deadline = time.monotonic() + START_SECONDS
    while not (tmp_path / "writes").exists():
        if time.monotonic() > deadline or process.poll() is not None:
            wait_until_gone(process, tmp_path, 0.0)
            raise AssertionError((tmp_path / "error").read_text())
        time.sleep(0.01)
    number = signal.Signals[kind]
    if target == "group":
        os.killpg(process.pid, number)
    else:
        rank = int((tmp_path / f"pid.{processes - 1}").read_text())
        os.kill(process.pid if target == "launcher" else rank, number)
    code, are_all_gone = wait_until_gone(process, tmp_path)
    said = (tmp_path / "error").read_text()
    assert are_all_gone, said
    assert code == code_of(setup, kind, target), said
    check_saved(tmp_path / "saved", io, said)


def check_saved(folder: Path, io: str, said: str) -> None:
    """Each checkpoint is whole and of one step; none is hidden."""
    names = os.listdir(folder)
    assert not [name for name in names if name.startswith(".") or not is_committed(folder / name)], (names, said)
    assert "signal.ckpt" in names, (names, said)
    assert latest(folder) == folder / "signal.ckpt"
    assert len(names) >= 3, names
    for name in names:
        read_manifest(folder / name).verify(folder / name)
        loaded: dict[str, Any] = IOS[io]().load_checkpoint(folder / name)
        step = loaded["progress"]["step"]
        assert name == "signal.ckpt" or step_of(name) == step
        for value in loaded["state_dict"].values():
            assert value.eq(step).all(), (name, step, value)
