"""However a run is left whose loaders have workers: it ends with its own error, and no worker is left."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from declared import PREFIX
from torch.utils.data import DataLoader

from core.data.workers import Workers

from .killing import processes_with
from .signalling import start, wait_until_gone, wait_while_it_works

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds processes in /proc")

SCRIPT = Path(__file__).parent / "scripts" / "leaves_at.py"
GONE_SECONDS = 10.0
"""Allowed until all are gone after the process that was started has ended."""


@frozen
class Way:
    """How a run is left."""

    code: int
    says: tuple[str, ...]
    """Of which one is in what it prints."""


DIED = ("is killed by signal", "exited unexpectedly", "EOFError", "ConnectionResetError", "ConnectionRefusedError")
"""What plain torch raises: the last three where the worker ends while a batch is taken from it."""
WAYS = {
    "step": Way(1, ("ValueError: planted",)),
    "callback": Way(1, ("ValueError: planted",)),
    "worker raises": Way(1, ("ValueError: bad sample",)),
    "worker exits": Way(1, DIED),
    "worker hangs": Way(1, ("ValueError: planted",)),
    "SIGKILL": Way(1, DIED),
    "SIGSEGV": Way(1, DIED),
    "parent killed": Way(-signal.SIGKILL, ("",)),
    "parent killed later": Way(-signal.SIGKILL, ("",)),
    "small shared memory": Way(1, ("No space left on device",)),
    "exit": Way(5, ("",)),
    "interrupt": Way(-signal.SIGINT, ("KeyboardInterrupt",)),
    "stop": Way(0, ("went on",)),
    "break": Way(0, ("went on",)),
    "end": Way(0, ("went on",)),
}
SMALL = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"', "sh")
"""As in a container: of its 16 pages, the semaphores of a loader's queues take 14, and each batch one."""
LOADERS = ("plain", "persistent", "generator", "held", "combined")
LOOPS = ("validate", "test", "predict", "own")
CONTEXTS = ("fork", "spawn", "forkserver")
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"],
    "torch-hal run": ["-m", "core.run", "--devices", "2"],
}
LAUNCHED = ("ddp", "ddp_spawn", "ddp_fork", *LAUNCHERS)

Case = tuple[str, str, str, str, str]
QUICK: tuple[Case, ...] = (("step", "train", "plain", "fork", "auto"),)
SLOW: tuple[Case, ...] = (
    ("worker raises", "validate", "persistent", "fork", "auto"),
    ("SIGKILL", "train", "persistent", "forkserver", "auto"),
    ("worker hangs", "predict", "generator", "fork", "auto"),
    ("worker raises", "own", "plain", "spawn", "auto"),
    ("exit", "own", "persistent", "fork", "auto"),
    ("parent killed", "own", "held", "fork", "auto"),
    ("parent killed later", "own", "held", "forkserver", "auto"),
    ("step", "train", "plain", "fork", "ddp"),
    ("worker exits", "train", "combined", "fork", "ddp_fork"),
    ("small shared memory", "train", "plain", "fork", "ddp_spawn"),
    ("step", "validate", "persistent", "spawn", "torchrun"),
)


def _cases() -> list[Case]:
    """Each way on one process with each loop, loader and start method that can differ; each launcher with each way."""
    one = [
        *((way, "train", loader, context, "auto") for way in WAYS for loader in LOADERS for context in CONTEXTS),
        *((way, loop, loader, "fork", "auto") for way in WAYS for loop in LOOPS for loader in LOADERS[:4]),
    ]
    launched = [
        (way, loop, loader, "fork", launcher)
        for way in WAYS
        for loop in ("train", "validate")
        for loader in LOADERS[:2]
        for launcher in LAUNCHED
    ]
    held = [
        (way, "own", "held", context, launcher)
        for way in ("parent killed", "parent killed later")
        for context in CONTEXTS
        for launcher in LAUNCHED
    ]
    wanted = {*one, *launched, *held, *QUICK, *SLOW}
    return sorted(case for case in wanted if _makes_sense(case))


def _makes_sense(case: Case) -> bool:
    way, loop, loader, _, strategy = case
    only = {"callback": ("train",), "stop": ("train",), "break": ("own",)}.get(way, (loop,))
    return loop in only and not (loader == "held" and strategy != "auto" and loop != "own")  # they cannot divide it


def _mark(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    return () if case in QUICK else (pytest.mark.slow if case in SLOW else pytest.mark.exhaustive,)


CASES = [pytest.param(*case, marks=_mark(case)) for case in _cases()]


@pytest.mark.parametrize(("way", "loop", "loader", "context", "launcher"), CASES)
def test_a_run_with_workers_is_left(
    way: str, loop: str, loader: str, context: str, launcher: str, tmp_path: Path
) -> None:
    """By an error of a step, a callback or a worker, by a dead worker or parent, a stop, an exit, an interrupt."""
    strategy = "ddp" if launcher in LAUNCHERS else launcher
    within = SMALL if way == "small shared memory" else ()
    if within and (os.geteuid() != 0 or subprocess.run([*SMALL, "true"], capture_output=True, check=False).returncode):
        pytest.skip(f"{PREFIX}only root can mount a small /dev/shm")
    arguments = (*LAUNCHERS.get(launcher, []), str(SCRIPT), way, loop, loader, context, strategy)
    process = start(tmp_path, *arguments, within=within)
    wait_while_it_works(process, tmp_path)
    code, are_all_gone = wait_until_gone(process, tmp_path, GONE_SECONDS)
    said = (tmp_path / "error").read_text(errors="replace")
    output = (tmp_path / "output").read_text()
    expected = WAYS[way]
    assert are_all_gone, said
    assert code in _codes(expected.code, launcher), said
    # Ranks that run the script themselves say in one line each where they were.
    is_line = way == "interrupt" and launcher in ("ddp", *LAUNCHERS)
    says = ("interrupted by SIGINT",) if is_line else expected.says
    assert any(text in said + output for text in says), said
    assert expected.says == DIED or "Exception ignored" not in said
    remedies = [number for number, line in enumerate(said.rstrip().splitlines()[::-1]) if "set num_workers=0" in line]
    # Runtime hands an object back that is no DataLoader: such a loop is between the user and torch.
    is_seen = bool(within) and not (loop == "own" and loader == "held")
    assert remedies[:1] == ([0] if is_seen else []) or launcher == "torchrun", said
    assert len(remedies) <= 1 or launcher != "auto"


def test_workers_stay_when_the_thread_that_has_started_them_ends() -> None:
    """They end with their process: Linux's own way to end a process with its parent looks at the parent's thread."""
    begun: list[Iterator[int]] = []
    numbers: Any = range(20)
    loader: DataLoader[int] = DataLoader(numbers, None, num_workers=2, multiprocessing_context="fork")
    thread = threading.Thread(target=lambda: begun.append(Workers().iterate(loader)))
    thread.start()
    thread.join()
    assert list(begun[0]) == [*range(20)]


FORKS_LATER = """
import multiprocessing, os, signal, sys, time
from torch.utils.data import DataLoader
from core.data.workers import Workers

if __name__ == "__main__":
    batches = Workers().iterate(DataLoader(range(9), None, num_workers=2, multiprocessing_context=sys.argv[1]))
    next(batches)
    workers = multiprocessing.active_children()
    if os.fork() == 0:
        time.sleep(1000)
    print(*[worker.pid for worker in workers], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone can tell")
@pytest.mark.parametrize(
    "context",
    [
        pytest.param("fork", marks=pytest.mark.exhaustive),
        pytest.param("spawn", marks=pytest.mark.exhaustive),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_workers_end_where_a_fork_of_their_parent_stays(context: str, tmp_path: Path) -> None:
    """It has the parent's end of the pipe by which they would see that the parent has ended."""
    (tmp_path / "forks.py").write_text(FORKS_LATER)
    process = start(tmp_path, "forks.py", context)
    assert process.wait() == -signal.SIGKILL, (tmp_path / "error").read_text()
    workers = {int(number) for number in (tmp_path / "output").read_text().split()}
    deadline = time.monotonic() + GONE_SECONDS
    while workers & {*processes_with(tmp_path)} and time.monotonic() < deadline:
        time.sleep(0.02)
    left = workers & {*processes_with(tmp_path)}
    wait_until_gone(process, tmp_path, 0.0)
    assert len(workers) == 2
    assert not left


def _codes(code: int, launcher: str) -> tuple[int, ...]:
    """Those of the job: launchers end with one of their own where a rank was interrupted or ended by `sys.exit`."""
    if launcher == "auto" or not code:
        return (code,)
    return (1,) if code == 1 or launcher == "torchrun" else (code, 128 - code, 1)
