"""Running a function in the real processes of a run, and reading what each process observed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from torch_hal.discovery.selection import VARIABLE
from torch_hal.strategies.store.tcp_store import host_store
from torch_hal.utilities.child_process import describe_end, kill_group

__all__ = ["Observed", "Outcome", "run"]

LIMIT = 180.0
"""Time limit of a run in seconds."""

_SETTLE_SECONDS = 10.0
_DUMP_SECONDS = 5.0
_RUNS_ON = ("CORE_", "PYTEST_", "TORCHELASTIC_")
_RANKS = frozenset(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
)


@attrs.frozen
class Observed:
    """What one process observed under one name."""

    value: Any = None
    kinds: Sequence[str] = ()
    """If an exception was raised instead: the names of its class and of the base classes."""
    text: str = ""
    """The exception's text."""
    trace: str = ""

    @property
    def raised(self) -> str:
        """The exception on one line; empty if there was none."""
        return f"{self.kinds[0]}: {self.text}" if self.kinds else ""


@attrs.frozen
class Outcome:
    """How the processes of a run ended, and what each process observed."""

    code: int | None
    """The first process's exit code; ``None`` if the run exceeded its time limit."""
    end: str
    """The exit code as text."""
    output: str
    """The printed output of all processes."""
    ended_at: float
    """The end of the first process, in seconds of :func:`time.time`."""
    left: tuple[str, ...]
    """Processes of the run that were still alive some seconds later, and were killed."""
    ranks: tuple[Mapping[str, Observed], ...]
    """By rank and name."""
    running: tuple[str, ...]
    """By rank, what was being observed when the process ended; may be empty."""
    directory: Path
    """The folder that was passed to the function."""

    def observed(self, name: str) -> list[Observed]:
        """What each process observed under ``name``, by rank.

        Raises:
            AssertionError: A process did not observe it.
        """
        assert self.ranks, f"no process of the run reached its function: {self.end}\n{self.output[-4000:]}"
        for rank, found in enumerate(self.ranks):
            if name not in found:
                doing = f" in {self.running[rank]!r}" if self.running[rank] else ""
                raise AssertionError(
                    f"rank {rank} did not reach {name!r}: {self.end}, rank {rank} being{doing or ' between two'}\n"
                    f"{self.output[-4000:]}"
                )
        return [found[name] for found in self.ranks]

    def value_of(self, rank: int, name: str) -> Any:
        """The value under ``name`` in one process, whatever the others reached before they ended.

        Raises:
            AssertionError: The process did not observe it, or it raised.
        """
        found = self.ranks[rank].get(name) if rank < len(self.ranks) else None
        assert found is not None, f"rank {rank} did not reach {name!r}: {self.end}\n{self.output[-4000:]}"
        assert not found.raised, f"{name}: rank {rank} raises {found.raised}\n{found.trace}"
        return found.value

    def values(self, name: str) -> list[Any]:
        """The values under ``name``, by rank.

        Raises:
            AssertionError: A process did not observe it, or it raised.
        """
        observed = self.observed(name)
        for rank, found in enumerate(observed):
            assert not found.raised, f"{name}: rank {rank} raises {found.raised}\n{found.trace}"
        return [found.value for found in observed]


def run(
    function: str,
    *arguments: Any,
    directory: Path,
    limit: float = LIMIT,
    started_here: int | None = None,
    start_command: Sequence[str] = (),
) -> Outcome:
    """Call ``function(directory, *arguments)`` in a process that may start further ones, or in several.

    Args:
        function: ``"module:function"``. It keeps what it observes in a :class:`torch_hal_devkit.worker.Journal` in
            ``directory``.
        *arguments: Of the function after ``directory``, as plain data.
        directory: An empty folder.
        limit: Time limit in seconds.
        started_here: The number of processes to start as torchrun does; by default one process without a launcher.
        start_command: The command that starts the processes, to which the command of one process is appended.
    """
    task, output = directory / "task", directory / "output"
    task.write_text(
        json.dumps(
            {"function": function, "arguments": [str(directory), *arguments], "limit": max(limit - _DUMP_SECONDS, 1.0)}
        ),
        "utf-8",
    )
    command = [*start_command, sys.executable, "-P", "-u", "-m", "torch_hal_devkit.worker", str(task)]
    processes: list[subprocess.Popen[bytes]] = []
    with output.open("wb") as file, _variables(started_here) as variables:
        try:
            for own in variables:
                leader = processes[0].pid if processes else None
                processes.append(_start(command, file, {**_environ(), **own}, leader))
            code = _wait(processes, time.monotonic() + limit)
            ended_at = time.time()
            left = tuple(_left(processes[0].pid))
        finally:
            kill_group(processes)
    end = f"the run hung, and was ended after {limit:g} s" if code is None else f"a process {describe_end(code)}"
    ranks, running = _journals(directory)
    return Outcome(code, end, output.read_text("utf-8", errors="replace"), ended_at, left, ranks, running, directory)


def _start(command: list[str], output: Any, environ: dict[str, str], leader: int | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environ,
        process_group=leader or 0,
    )


def _environ() -> dict[str, str]:
    """This process's variables, without those of a launcher or of a test run."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == VARIABLE or not (name.startswith(_RUNS_ON) or name in _RANKS)
    }
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@contextmanager
def _variables(started_here: int | None) -> Iterator[list[dict[str, str]]]:
    """Further variables of each process. If there are several, this process hosts their store."""
    if started_here is None:
        yield [{}]
        return
    store = host_store("127.0.0.1")
    common = {
        "WORLD_SIZE": str(started_here),
        "LOCAL_WORLD_SIZE": str(started_here),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    yield [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(started_here)]
    del store


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> int | None:
    """The exit code of all, or of the first that failed; ``None`` at the deadline."""
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if failed := [code for code in codes if code]:
            return failed[0]
        if None not in codes:
            return 0
        time.sleep(0.02)
    return None


def _left(group: int) -> list[str]:
    """The processes of the group that are alive after some seconds."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (members := _members(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return members


def _members(group: int) -> list[str]:
    if not Path("/proc/self/stat").exists():
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return []
        return [f"of process group {group}"]
    members = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if not entry.name.isdecimal():
                continue
            state, _, process_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state not in "ZX":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                members.append(f"{entry.name}: {command.strip()[:200]}")
    return members


def _journals(directory: Path) -> tuple[tuple[Mapping[str, Observed], ...], tuple[str, ...]]:
    ranks: list[dict[str, Observed]] = []
    running: list[str] = []
    while (path := directory / f"rank-{len(ranks)}").exists():
        found: dict[str, Observed] = {}
        begun = ""
        for text in path.read_text("utf-8").split("\n")[:-1]:  # what has no end was being written when it died
            line = json.loads(text)
            begun = line.get("begin", "")
            if "name" in line:
                error = line.get("error", {})
                found[line["name"]] = Observed(line.get("value"), **error)
        ranks.append(found)
        running.append(begun)
    return tuple(ranks), tuple(running)
