"""Ctrl-C before a run has begun: one line says so, and no traceback of each process that still imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from python_processes import SETTINGS, run_python

from core.strategies.launchers.interrupts import IMPORTING, blocks_interrupts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("started_not_forked")]

SCRIPT = Path(__file__).parent / "scripts" / "importing.py"
HANDLES = """
import ctypes, os, sys, threading
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
@HANDLER
def handle(number):
    os.write(1, b"handles it\\n")
    os.read(0, 1)
libc = ctypes.CDLL(None)
libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, HANDLER), ctypes.c_void_p
libc.signal(2, handle)
os.write(1, b"ready\\n")
os.read(0, 1)
"""


@pytest.mark.parametrize(
    ("command", "started", "code"),
    [
        ((SCRIPT, ".", "ddp"), 2, -signal.SIGINT),
        ((SCRIPT, ".", "ddp_spawn"), 3, -signal.SIGINT),
        (("-m", "core.run", "--devices", "3", SCRIPT, ".", "ddp"), 3, 128 + signal.SIGINT),
    ],
    ids=["ddp", "ddp_spawn", "run"],
)
def test_processes_that_import_end_in_silence(
    tmp_path: Path, command: tuple[object, ...], started: int, code: int
) -> None:
    """The signal goes to all, as from a terminal: all are gone within seconds, and there is one line."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("importing-*"))) < started and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        stderr = process.communicate(timeout=20)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, stderr
    lines = [line for line in stderr.splitlines() if "share" not in line]  # more processes than cores
    assert len(lines) == 1, stderr
    assert "interrupted by SIGINT" in lines[0]
    for path in tmp_path.glob("importing-*"):
        assert not Path("/proc", path.name.removeprefix("importing-")).exists()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads signal masks in /proc")
@pytest.mark.parametrize(
    ("blocked", "imports"),
    [("IMPORTING", True), ("{signal.SIGINT}", False), ("signal.valid_signals()", False), ("set()", False)],
    ids=["imports", "handles Ctrl-C", "starts a thread", "works"],
)
def test_a_process_that_still_imports_is_known_by_its_mask(blocked: str, imports: bool) -> None:
    """Others block SIGINT for a moment: Ctrl-C then must not end a run that trains."""
    blocked = blocked.replace("IMPORTING", str({int(number) for number in IMPORTING}))
    code = f"import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {blocked}); print(); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-u", "-c", code], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        assert blocks_interrupts(process.pid) == imports
        process.stdin.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads signal masks in /proc")
def test_the_system_blocks_a_signal_while_its_handler_runs() -> None:
    """What a process looks like that handles Ctrl-C in the moment in which it is asked whether it still imports."""
    with subprocess.Popen(
        [sys.executable, "-c", HANDLES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "handles it"
        assert "SigBlk:\t0000000000000002" in Path(f"/proc/{process.pid}/status").read_text()
        assert not blocks_interrupts(process.pid)
        process.stdin.close()


def test_rank_0_exits_before_the_others_have_joined(tmp_path: Path) -> None:
    """``sys.exit(3)`` ends the others, which would wait for it until their time limit."""
    script = tmp_path / "exits.py"
    script.write_text(
        "import sys\n"
        "from core import Runtime\n"
        "from core.strategies import DDPStrategy\n"
        "class Exits(DDPStrategy):\n"
        "    def init_dist_connection(self):\n"
        "        if self.global_rank == 0:\n"
        "            sys.exit(3)\n"
        "        super().init_dist_connection()\n"
        "Runtime(accelerator='cpu', devices=3, strategy=Exits()).launch()\n"
    )
    run_python(script, cwd=tmp_path, expect=3, timeout=60, leaves_nothing=True)
