"""The collectives that a process has begun, and the line of the user's code that makes a call.

A collective waits for all processes, in C++ code that no exception reaches. Nothing is exchanged for each of them: a
process counts those that its strategy begins. One that has been in the same for some seconds asks the others how far
they are (``Stacks`` in :mod:`core.strategies.stack_exchange`). Each process begins the same collectives in
the same order, so two counts show whether a process is in another one, or only late, which is no fault.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from attrs import field, frozen

from ..errors import ConfigurationError
from ..utilities.objects import by_rank
from ..utilities.torch_private import sequence_number

KEPT = 8
"""The names of so many newest collectives are kept: on accelerators, Python runs ahead of the collectives."""


class Calls:
    """Counts the collectives that a strategy begins in this process's main thread."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, str]] = deque([(0, "")], KEPT)
        self._waits_for: int | None = None

    def begin(self, name: str) -> None:
        """Count one; called right before it begins."""
        self._newest.append((self._newest[-1][0] + 1, name))

    @contextmanager
    def waiting_for(self, rank: int) -> Iterator[None]:
        """Wait for a note of process ``rank`` in the store, which is no collective."""
        self._waits_for = rank
        try:
            yield
        finally:
            self._waits_for = None

    def begun(self) -> Begun:
        """What this process has begun; for any thread."""
        # The group's number first: a collective that it counts was counted here before.
        sequence = _sequence()
        newest = self._newest.copy()
        return Begun(newest[-1][0], tuple(newest), sequence, self._waits_for)


def _pairs(given: Iterable[Sequence[Any]]) -> tuple[tuple[int, str], ...]:
    return tuple((number, name) for number, name in given)


@frozen
class Begun:
    """How far a process is."""

    count: int = 0
    """The number of collectives that its strategy has begun."""
    newest: tuple[tuple[int, str], ...] = field(default=(), converter=_pairs)
    """The number and name of the last ones."""
    sequence: int | None = None
    """The number that the process group itself has begun, such as those of a backward pass; ``None`` if unknown."""
    waits_for: int | None = None
    """The rank of the process for whose note it waits, as long as it takes."""

    def is_ahead_of(self, other: Begun) -> bool:
        """Whether it has begun a collective that the other process has not."""
        if self.sequence is None or other.sequence is None:
            return self.count > other.count
        return self.count > other.count or self.sequence > other.sequence


NOTHING = Begun()
"""Of a process that has begun none."""


def _sequence() -> int | None:
    if "torch.distributed.pipelining" in sys.modules:  # what one process sends to another is counted too
        return None
    with suppress(AttributeError, RuntimeError, ValueError):  # no group; or its backend does not count
        return sequence_number()
    return None


_NOT_THE_USERS = ("torch_hal", "contextlib")


def user_frame() -> FrameType:
    """The innermost running frame of the user's code; the outermost of all if there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_user_frame(frame):
        frame = frame.f_back
    return frame


def call_site() -> str:
    """File and line of the user's code that is running: the innermost that is not torch-hal's."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def differing_facts(given: Sequence[Sequence[str]]) -> list[str] | None:
    """The facts of all processes, by rank, if they are not equal.

    Args:
        given: By rank: the call that the process makes, where, and what it gives.

    Raises:
        ConfigurationError: The processes make different calls.
    """
    if len({call for call, _, _ in given}) > 1:
        calls = by_rank([f"{call} ({site})" for call, site, _ in given])
        raise ConfigurationError(
            f"processes are in different collectives: {calls}. Call the same one in every process, in one order."
        )
    facts = [fact for _, _, fact in given]
    return facts if len(set(facts)) > 1 else None


def is_user_frame(frame: FrameType) -> bool:
    """Whether ``frame`` runs neither torch-hal's code nor that of a context manager's decorator."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USERS


def method_called(innermost: FrameType | None = None) -> tuple[str, str]:
    """The method of a front end that is running, such as ``Trainer.fit``, and the user's line that calls it.

    The line is empty in a process of ``ddp_spawn``, where the user's code has not called it; both if there is none.
    """
    method, frame = "", sys._getframe(1) if innermost is None else innermost
    while frame.f_back is not None and not _is_users_own(frame):
        module = str(frame.f_globals.get("__name__", ""))
        if module == "torch_hal.strategies.launchers.function":
            return method, ""
        name = frame.f_code.co_name
        if module.startswith("torch_hal.runtime."):
            if name in ("__call__", "forward"):
                method = "forward"
            elif not name.startswith("_"):
                method = f"Runtime.{name}"
        elif module.startswith("torch_hal.trainer.") and not name.endswith("run_stage"):
            method = frame.f_code.co_qualname
        elif module == "torch_hal.strategies.parallel":
            method = f"strategy.{name}"
        frame = frame.f_back
    if not method or not _is_users_own(frame):
        return "", ""
    return method, f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_users_own(frame: FrameType) -> bool:
    """Whether :func:`is_user_frame`, and it belongs to no plugin, nor to what starts processes."""
    module = str(frame.f_globals.get("__name__", ""))
    return is_user_frame(frame) and not module.startswith(("torch_hal_", "torch.", "multiprocessing."))
