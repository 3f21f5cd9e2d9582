"""Kills a run at a random moment, and resumes it: what was lost, what hung, what was left.

``benchmarks/failures.py kills`` makes a table of many.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import evolve, frozen

from core.checkpoints import is_committed, latest, read_manifest

SCRIPT = Path(__file__).parent / "scripts" / "killed.py"

SETUPS: dict[str, tuple[str, ...]] = {
    "single_device": ("torch", "sharded", "async", "safetensors"),
    "ddp": ("torch", "sharded", "async", "async-sharded"),
    "ddp_spawn": ("torch", "async"),
    "ddp_fork": ("torch", "sharded", "async", "async-sharded", "safetensors"),
    "ddp_sharded": ("torch", "sharded"),
    "fsdp": ("torch", "sharded", "async"),
    "torchrun": ("torch", "sharded", "async"),
    "torch-hal run": ("torch", "async-sharded"),
}
"""The CheckpointIOs by strategy, or by launcher where another process starts the ranks of ``ddp``.

``fsdp`` writes whole tensors with ``torch``, and shards with the others.
"""

START_SECONDS = 240.0
"""Allowed until a run has written the checkpoints after which it is killed."""
ALL_GONE_SECONDS = 30.0
"""Allowed until all processes have ended after a kill, on a machine that does other things too."""


@frozen
class Case:
    """One kill."""

    setup: str
    io: str
    victim: str
    """``"first"`` for the process that was started, ``"rank 0"``, ``"rank 1"``, or ``"all"``."""
    commits: int
    """After how many checkpoints it is killed."""
    share: float
    """How long after that: as a share of the time from one checkpoint to the next."""
    workers: int
    """Of the loader, in each process."""

    @classmethod
    def draw(cls, seed: int) -> Case:
        """The case of a seed."""
        chance = random.Random(seed)
        setup = list(SETUPS)[seed % len(SETUPS)]
        victims = ["first"] if setup == "single_device" else ["first", "rank 0", "rank 1", "all"]
        io, victim = chance.choice(SETUPS[setup]), chance.choice(victims)
        return cls(setup, io, victim, chance.randrange(10), chance.random(), chance.choice([0, 2, 2]))

    def command(self, mode: str) -> list[str]:
        """The arguments of Python."""
        script = [str(SCRIPT), "ddp", "2", self.io, str(self.workers), mode]
        if self.setup == "torchrun":
            return ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *script]
        if self.setup == "torch-hal run":
            return ["-m", "core.run", "--devices", "2", *script]
        return [self.setup, "1" if self.setup == "single_device" else "2", self.io, str(self.workers), mode]


@frozen
class Outcome:
    """What a kill and the resumed run showed."""

    code: int
    """Exit code of the process that was started."""
    commits: int
    gone_seconds: float
    is_lost: bool
    """A checkpoint that could be found before was not there after it."""
    uncommitted: list[str]
    """Names that a search would find, and that are no whole checkpoint."""
    leftovers: list[str]
    """Hidden directories after the resumed run, and processes."""
    is_equal: bool
    """The resumed run ended with the same bits as an uninterrupted one."""

    @property
    def is_hung(self) -> bool:
        """Whether processes were still there after the limit."""
        return self.gone_seconds >= ALL_GONE_SECONDS

    @property
    def is_well(self) -> bool:
        """Whether nothing was lost, hung or left."""
        return self.is_equal and not (self.is_lost or self.uncommitted or self.leftovers or self.is_hung)


class Killer:
    """A context in which runs are killed; it keeps a process that has imported torch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[str, list[str]] = {}
        self._count = 0

    def __enter__(self) -> Self:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        environ.pop("FORK_SERVERS", None)  # processes that are started, also in the tests' sessions
        self._template = subprocess.Popen(
            [sys.executable, str(SCRIPT), "template"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert self._template.stdout is not None
        # Until then, a look at this process's children may find it without its command line.
        assert self._template.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._template.stdin is not None
        assert self._template.stdout is not None
        self._template.stdin.close()
        if error is not None:
            self._template.kill()
        self._template.wait()
        self._template.stdout.close()

    def _start(self, out: Path, command: list[str]) -> int:
        assert self._template.stdin is not None
        assert self._template.stdout is not None
        self._template.stdin.write(f"{out} {' '.join(command)}\n")
        self._template.stdin.flush()
        return int(self._template.stdout.readline())

    def _end(self) -> int:
        assert self._template.stdout is not None
        return int(self._template.stdout.readline())

    def _uninterrupted(self, case: Case) -> list[str]:
        """With what the processes end that are not killed."""
        key = case.setup if case.setup not in ("torchrun", "torch-hal run", "ddp_spawn", "ddp_fork") else "ddp"
        if key not in self._whole:
            out = self._folder / f"whole_{key}"
            out.mkdir()
            self._start(out, evolve(case, setup=key).command("go"))
            assert self._end() == 0, (out / "log").read_text()
            self._whole[key] = ends(out)
        return self._whole[key]

    def run(self, case: Case) -> Outcome:
        """Start, kill and resume.

        Raises:
            AssertionError: A run failed that was not killed.
        """
        whole = self._uninterrupted(case)
        self._count += 1
        out = self._folder / f"case{self._count}"
        out.mkdir()
        first = self._start(out, case.command("go"))
        self._wait_for_its_moment(case, first, out)
        for victim in _victims(case, first, out):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        left, gone = _wait_until_gone(out, 2 * ALL_GONE_SECONDS)
        code = self._end()
        noted = commits(out)
        found = latest(out / "saved")
        lost = bool(noted) and (found is None or step_of(found.name) < step_of(noted[-1]))
        visible = [path.name for path in (out / "saved").glob("[!.]*") if not is_committed(path)]
        if found is not None:
            read_manifest(found).verify(found)
        self._start(out, case.command("resume"))
        assert self._end() == 0, f"{case}: it does not resume\n{(out / 'log').read_text()[-6000:]}"
        late, _ = _wait_until_gone(out, 10.0)
        leftovers = [path.name for path in (out / "saved").glob(".*")] + [str(process) for process in left + late]
        return Outcome(code, len(noted), gone, lost, visible, leftovers, ends(out) == whole)

    def _wait_for_its_moment(self, case: Case, first: int, out: Path) -> None:
        moments: list[float] = []
        deadline = time.monotonic() + START_SECONDS
        while len(moments) < case.commits + 1:
            if len(commits(out)) > len(moments) - 1 and (out / "pid.0").exists():
                moments.append(time.monotonic())
            elif time.monotonic() > deadline or not Path(f"/proc/{first}").exists():
                _wait_until_gone(out, 0.0)
                raise AssertionError(f"{case}: ended with {self._end()} before\n{(out / 'log').read_text()[-6000:]}")
            time.sleep(0.001)
        interval = (moments[-1] - moments[0]) / case.commits if case.commits else 0.5
        time.sleep(interval * case.share)


def _victims(case: Case, first: int, out: Path) -> list[int]:
    if case.victim == "all":
        return processes_with(out)
    return [first if case.victim == "first" else int((out / f"pid.{case.victim[-1]}").read_text())]


def _wait_until_gone(out: Path, seconds: float) -> tuple[list[int], float]:
    """The processes that are still there after the time, which are ended, and how long it took."""
    begin = time.monotonic()
    while (left := processes_with(out)) and time.monotonic() < begin + seconds:
        time.sleep(0.05)
    gone = time.monotonic() - begin
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return left, gone


def commits(out: Path) -> list[str]:
    """The names of the checkpoints that could be found, in their order."""
    return (out / "commits").read_text().splitlines() if (out / "commits").exists() else []


def step_of(name: str) -> int:
    return int(name.partition("step=")[2].partition(".")[0])


def ends(out: Path) -> list[str]:
    """What each rank ended with."""
    return [path.read_text() for path in sorted(out.glob("end.*"))]


def cpu_seconds(process: int) -> float:
    """What it has used, with its children that have ended; 0 if it has ended itself."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def processes_with(out: Path) -> list[int]:
    """The processes that still run with ``OUT=out``, or in that folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                has_it = f"OUT={out}\0".encode() in (entry / "environ").read_bytes()
                if has_it or os.readlink(entry / "cwd") == str(out):
                    found.append(int(entry.name))
    return [process for process in found if process != os.getpid()]
