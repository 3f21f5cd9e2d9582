"""Runs cells in real processes: each in its own process group, with a time limit, leaving no process behind.

A server is forked for the strategies of one distribution before torch is imported, so that libraries of different
engines never meet. It imports what they need, stays with one thread, and forks a supervisor for each cell, which forks
the cell's processes, or starts them with the engine's own launcher.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import attrs
from matrix_cells import Cell, Outcome, children, resolve

__all__ = ["outcomes"]

FORK = multiprocessing.get_context("fork")

SETTLE_SECONDS = 5.0
"""How long processes may take to end after those that they served have."""

RESOLVE_SECONDS = 120.0
"""How long a server may be silent beyond a cell's time limit."""

LOADED_LATE = {"torch-hal-deepspeed": ("deepspeed.runtime.zero.muon.original_muon",)}
"""By distribution: what its engine imports where an optimizer is made, which takes each process seconds."""

_PR_SET_CHILD_SUBREAPER = 36
_KEPT = 6000
"""Characters of output that are kept, from the end."""


# -- the main process ------------------------------------------------------------------------------------------------


def outcomes(
    distribution: str, cells: Sequence[Cell], folder: Path, jobs: int, limit: float
) -> Iterator[tuple[Cell, Outcome]]:
    """What becomes of each cell, as soon as it is known.

    Args:
        distribution: What the cells' strategies came with.
        cells: Which.
        folder: Where processes leave what they write.
        jobs: Cells that run at a time.
        limit: Seconds for each.
    """
    if not cells:
        return
    ours, theirs = FORK.Pipe(duplex=False)
    server = FORK.Process(target=_serve, args=(distribution, list(cells), folder, jobs, limit, theirs), name="server")
    server.start()
    theirs.close()
    missing = dict.fromkeys(cells)
    try:
        while missing and ours.poll(limit + RESOLVE_SECONDS):
            cell, outcome = ours.recv()
            del missing[cell]
            yield cell, outcome
    except EOFError:
        pass
    finally:
        if missing:
            server.terminate()
        server.join(limit)
        if server.is_alive():
            server.kill()
            server.join()
    text = f"the process that serves this distribution's strategies came to no outcome (exit code {server.exitcode})"
    for cell in missing:
        yield cell, Outcome("failed", text, _tail(folder / "server.log"))


# -- the server ------------------------------------------------------------------------------------------------------


def _serve(
    distribution: str, cells: Sequence[Cell], folder: Path, jobs: int, limit: float, channel: Connection
) -> None:
    """Resolve all cells, then run those that are not refused, ``jobs`` at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    _redirect(folder / "server.log")
    signal.signal(signal.SIGTERM, _exit_at_signal)
    importlib.import_module("matrix_training")  # torch and core, which all cells share
    waiting: list[tuple[Cell, str]] = []
    for cell in cells:
        outcome = resolve(cell)
        if outcome.kind == "open":
            waiting.append((cell, outcome.route))
        else:
            channel.send((cell, outcome))
    if waiting:
        for module in ("torch._dynamo", *LOADED_LATE.get(distribution, ())):
            importlib.import_module(module)
    if len(list(Path("/proc/self/task").glob("*"))) > 1:
        raise RuntimeError("what was imported has started threads, which do not survive a fork")
    running: dict[int, tuple[Cell, Path, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell, route = waiting.pop(0)
                place = folder / cell.slug
                place.mkdir()
                supervisor = FORK.Process(target=_supervise, args=(cell, route, place, limit), name=str(cell))
                supervisor.start()
                running[supervisor.sentinel] = cell, place, supervisor
            for sentinel in wait(list(running)):
                assert isinstance(sentinel, int)
                cell, place, process = running.pop(sentinel)
                process.join()
                channel.send((cell, _outcome(place, process)))
    finally:
        for _, _, process in running.values():
            process.terminate()
        for _, _, process in running.values():
            process.join()


def _outcome(place: Path, supervisor: BaseProcess) -> Outcome:
    path = place / "outcome.json"
    if not path.exists():
        text = f"the supervisor of its processes came to no outcome (exit code {supervisor.exitcode})"
        return Outcome("failed", text, _tail(place / "output"))
    return Outcome(**json.loads(path.read_text("utf-8")))


# -- the supervisor --------------------------------------------------------------------------------------------------


def _supervise(cell: Cell, route: str, place: Path, limit: float) -> None:
    """Start the cell's processes, see them end, and say what became of the cell."""
    from matrix_training import judge

    _redirect(place / "output")
    _adopt_orphans()
    parent = os.getppid()
    began = time.monotonic()
    try:
        ended = _ROUTES[route](cell, place, limit)
        _wait(ended, began + limit, parent)
        seconds = time.monotonic() - began
        wrong = _ends(ended, seconds) or _left_behind()
    finally:
        _end_all()
    seen = [json.loads(path.read_text("utf-8")) for path in sorted(place.glob("rank*.json"))]
    wrong += judge(cell, seen)
    outcome = Outcome(
        "failed" if wrong else "worked",
        "; ".join(wrong),
        _tail(place / "output") if wrong else "",
        round(seconds, 2),
        route,
    )
    (place / "outcome.json").write_text(json.dumps(attrs.asdict(outcome)), "utf-8")


_Ended = Mapping[str, Callable[[], int | None]]
"""By the name of each process that was started: asks for its exit code, ``None`` as long as it runs."""


def _alone(cell: Cell, place: Path, limit: float) -> _Ended:
    """The user's one process; what others it needs it starts by itself."""
    return {"process": _fork(cell, place, limit, 0)}


def _as_torchrun(cell: Cell, place: Path, limit: float) -> _Ended:
    """A process for each rank, with the variables that torchrun sets; the first serves the store on a free port."""
    ours, theirs = FORK.Pipe(duplex=False)
    ended = {f"process {rank}": _fork(cell, place, limit, rank, ours, theirs) for rank in range(cell.ranks)}
    ours.close()
    theirs.close()
    return ended


def _fork(
    cell: Cell, place: Path, limit: float, rank: int, take: Connection | None = None, tell: Connection | None = None
) -> Callable[[], int | None]:
    process = FORK.Process(target=_be_rank, args=(cell, place, limit, rank, take, tell), name=f"rank {rank}")
    process.start()
    return lambda: process.exitcode


def _horovodrun(cell: Cell, place: Path, limit: float) -> _Ended:
    script = str(Path(__file__).with_name("matrix_training.py"))
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", str(cell.ranks), "--gloo"]
    command += ["--network-interfaces", "lo"]
    launcher = subprocess.Popen(
        [*command, sys.executable, script, cell.to_json(), str(place)], stdin=subprocess.DEVNULL
    )
    return {"horovodrun": launcher.poll}


_ROUTES: Mapping[str, Callable[[Cell, Path, float], _Ended]] = {
    "alone": _alone,
    "function": _alone,
    "torchrun": _as_torchrun,
    "horovodrun": _horovodrun,
}


def _wait(ended: _Ended, deadline: float, parent: int) -> None:
    """Wait until all of them have ended, or the time is over; that is soon where one has failed."""
    has_failed = False
    while any(code() is None for code in ended.values()) and time.monotonic() < deadline:
        if not has_failed and any(code() for code in ended.values()):
            has_failed, deadline = True, min(deadline, time.monotonic() + 4 * SETTLE_SECONDS)
        if os.getppid() != parent:  # the server is gone
            raise SystemExit(1)
        time.sleep(0.01)


def _ends(ended: _Ended, seconds: float) -> list[str]:
    """How those processes ended with which something is wrong."""
    codes = {name: code() for name, code in ended.items()}
    return [
        f"{name} was still there after {seconds:.0f} s" if code is None else f"{name} ended with exit code {code}"
        for name, code in codes.items()
        if code != 0
    ]


def _left_behind() -> list[str]:
    """Processes that are still there some time after those that started them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (living := _living()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [f"processes left behind: {sorted(living.values())}"] if living else []


def _living() -> dict[int, str]:
    """This process's children that run; whoever has ended is seen off."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return {number: command for number, command in children().items() if command}


def _end_all() -> None:
    """Kill all that is left; what it leaves comes to this process, and is killed as well."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (living := _living()) and time.monotonic() < deadline:
        for number in living:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)


def _adopt_orphans() -> None:
    """Become the parent of processes whose own has ended, where the system can do so (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# -- a process of the cell -------------------------------------------------------------------------------------------


def _be_rank(
    cell: Cell, place: Path, limit: float, rank: int, take: Connection | None, tell: Connection | None
) -> None:
    """Run the cell as process ``rank``, and end as an interpreter does."""
    from matrix_training import train

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.dump_traceback_later(0.9 * limit)  # says where a process hangs
    code = 1
    try:
        store = None
        if take is not None and tell is not None:
            store = _meet(cell, rank, take, tell)
        train(cell, place, rank)
        del store
        code = 0
    except BaseException as error:  # noqa: BLE001  the outermost frame of a process
        sys.last_value = error  # as an interpreter does with what no one caught, for those who ask at exit
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _meet(cell: Cell, rank: int, take: Connection, tell: Connection) -> Any:
    """Set the variables that torchrun would; returns the store, in the process that serves it."""
    store = None
    if rank == 0:
        from core.strategies.store.tcp_store import host_store

        store = host_store("127.0.0.1")
        for _ in range(cell.ranks - 1):
            tell.send(store.port)
    else:
        tell.close()
    port = store.port if store is not None else take.recv()
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": cell.ranks, "LOCAL_WORLD_SIZE": cell.ranks}
    met = {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ.update({name: str(value) for name, value in {**own, **met}.items()})
    return store


# -- small things ----------------------------------------------------------------------------------------------------


def _redirect(path: Path) -> None:
    """Let all that this process writes go to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _exit_at_signal(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _tail(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")[-_KEPT:] if path.exists() else ""
