"""The cells of the matrix, and the check before anything runs whether one is accepted or refused by name."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

__all__ = [
    "FRONT_ENDS",
    "PRECISIONS",
    "RANKS",
    "STARTED_OTHERWISE",
    "Cell",
    "Outcome",
    "cells_of",
    "children",
    "construct",
    "resolve",
]

FRONT_ENDS = ("Runtime", "Trainer")
PRECISIONS = ("64-true", "32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")
RANKS = (1, 2)

STARTED_OTHERWISE = {"horovod": "horovodrun"}
"""By strategy: what starts its processes, where neither the strategy does nor anything like torchrun."""

_HOROVOD = {"RANK": 0, "LOCAL_RANK": 0, "CROSS_RANK": 0, "CROSS_SIZE": 1}
_NAMES_AN_ARGUMENT = re.compile(r"[a-z_]+(\[[^]]*\])*=|[a-z_]+(, [a-z_]+)*: ")


@attrs.frozen(order=True)
class Cell:
    """One strategy in one precision, by one front end, in so many processes on the CPU."""

    strategy: str
    precision: str
    front_end: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.strategy} {self.precision} {self.front_end} x{self.ranks}"

    @property
    def slug(self) -> str:
        """The same as the name of a folder."""
        return re.sub(r"[^\w.=-]+", "_", str(self))

    def to_json(self) -> str:
        """Plain data, for :meth:`from_json`."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cell:
        """What :meth:`to_json` gave."""
        return cls(**json.loads(text))


@attrs.frozen
class Outcome:
    """What became of a cell."""

    kind: str
    """``worked``, ``refused``, or ``failed``."""
    text: str = ""
    """Why it was refused or failed."""
    output: str = ""
    """What the processes of a failed cell wrote."""
    seconds: float = 0.0
    """From the start of its processes to their end."""
    route: str = ""
    """How its processes are started: ``alone`` and ``function`` by the script itself, ``torchrun``, ``horovodrun``."""


def cells_of(strategies: Iterable[str], precisions: Iterable[str] = PRECISIONS) -> list[Cell]:
    """Every cell of these rows and columns."""
    return [Cell(*arguments) for arguments in itertools.product(strategies, precisions, FRONT_ENDS, RANKS)]


def construct(cell: Cell, **more: Any) -> Any:
    """The front end that the cell names, as a user makes it.

    Args:
        cell: Whose.
        **more: Further arguments for the Trainer.

    Raises:
        CoreError: It is refused.
    """
    import core

    arguments: dict[str, Any] = {"strategy": cell.strategy, "precision": cell.precision, "devices": cell.ranks}
    if cell.front_end == "Runtime":
        return core.Runtime(accelerator="cpu", **arguments)
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
    return core.Trainer(accelerator="cpu", **arguments, **{**quiet, **more})


def resolve(cell: Cell) -> Outcome:
    """Make the front end in this process, which must start nothing and meet no one.

    Returns:
        The cell as ``refused``; as ``failed``, where that happened in another way than by name; or as ``open``, with
        the route on which it can be run.
    """
    from core.errors import CoreError

    before = children()
    kind, text, route = "open", "", ""
    try:
        with _launched(cell):
            front_end = construct(cell)
        route = _route(cell, front_end)
        del front_end
    except CoreError as error:
        kind, text = "refused", str(error)
        if fault := _fault_of_refusal(cell, text):
            kind, text = "failed", f"the refusal {fault}: {type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, it is a finding
        kind, text = "failed", f"not refused by name, but {type(error).__name__}: {error}"
    started = children().keys() - before.keys()
    for number in started:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    if started or _has_met():
        what = f"started processes {sorted(started)}" if started else "joined a process group"
        kind, text = "failed", f"making the front end {what}. {text}"
    return Outcome(kind, text, route=route)


def _route(cell: Cell, front_end: Any) -> str:
    plan = front_end.plan
    if cell.strategy in STARTED_OTHERWISE and plan.world_size > 1:
        return STARTED_OTHERWISE[cell.strategy]
    if plan.world_size == 1:
        return "alone"
    return "function" if plan.runs_function else "torchrun"


def _fault_of_refusal(cell: Cell, text: str) -> str:
    """What a refusal lacks; empty where it says what is concerned, and what would do."""
    names = repr(cell.strategy) in text or repr(cell.precision) in text or _NAMES_AN_ARGUMENT.match(text)
    if not names:
        return "names neither strategy, precision nor an argument"
    return "" if "Valid" in text else "does not say what is valid"


@contextmanager
def _launched(cell: Cell) -> Iterator[None]:
    """The environment as process 0 has it where something else than the strategy starts the processes."""
    if STARTED_OTHERWISE.get(cell.strategy) != "horovodrun" or cell.ranks == 1:
        yield
        return
    numbers: Mapping[str, int] = {**_HOROVOD, "SIZE": cell.ranks, "LOCAL_SIZE": cell.ranks}
    added = {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _has_met() -> bool:
    """Whether this process is a member of a group of processes, torch's or Horovod's."""
    import torch.distributed as dist

    horovod = sys.modules.get("horovod.torch")
    return dist.is_initialized() or (horovod is not None and bool(horovod.is_initialized()))


def children() -> dict[int, str]:
    """The command lines of this process's children by number, as the system tells them; dead ones count too."""
    found = {}
    for task in Path("/proc/self/task").glob("*/children"):
        for number in map(int, task.read_text().split()):
            try:
                command = Path("/proc", str(number), "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[number] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found
