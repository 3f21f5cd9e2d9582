"""Processes in step: what they compare before a collective, and points where they wait."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigurationError, LaunchError
from ..strategies.base import Strategy
from ..strategies.calls import call_site, differing_facts
from ..strategies.parallel import ProcessGroupStrategy
from ..strategies.store.notes import Board
from ..strategies.time_limits import ABSENT_SECONDS
from ..utilities.nested import leaves
from ..utilities.objects import by_rank, describe_tensor
from .gradient_state import GradientState
from .lifecycle import Life

logger = logging.getLogger(__name__)

Row = tuple[str, str]
"""A place in a structure, such as ``tensor['loss']``, and what is there, such as ``(2, 3) float32``."""

PADDING = "real samples"
"""The row that says what of the newest batch is not padding."""

_HEADINGS = ("call", "line", PADDING)


class Agreement:
    """Compares the calls that the processes are about to make.

    Args:
        life: Of the run.
        gradient_state: Which processes have no batch left.
        debug: Whether call, place in the code, shapes and dtypes are compared before each collective.
    """

    def __init__(self, life: Life, gradient_state: GradientState, debug: bool) -> None:
        self._life, self._gradient_state, self.debug = life, gradient_state, debug
        self._warns_of_absent = True

    def agree(self, call: str, rows: Sequence[Row] = (), *, site: str | None = None) -> None:
        """Check that all processes make the same ``call`` with the same ``rows``.

        Args:
            call: The collective, with the arguments that have to be equal.
            rows: What it is called with.
            site: The line of the user's code, where it is not the one that is running.

        Raises:
            ConfigurationError: They do not; raised in every process.
        """
        refuse_difference(self.compare(call, rows, site=site))

    def compare(self, call: str, rows: Sequence[Row], *, site: str | None = None) -> list[list[Row]] | None:
        """The rows of each process by rank if they differ; otherwise ``None``.

        All of the Runtime's collectives begin with this one, so that two different ones cannot be mixed up. It warns if
        some processes have probably left the loop and do not make the call.

        Raises:
            ConfigurationError: They make different calls; raised in every process.
        """
        strategy = self._life.live()
        if self._warns_of_absent and (absent := self.absent()):
            self._warns_of_absent = False
            logger.warning(
                "%s: %s have no batch left, because of even_batches=False. If they do not call it too, this process "
                "waits for them; call it after the loop",
                call,
                absent,
            )
        if strategy.world_size == 1:
            return None
        if self.debug:
            site = site or call_site()
            given = announce(strategy, call, site, json.dumps([("call", call), ("line", site), *rows]))
        else:
            given = strategy.differing(call, json.dumps([("call", call), *rows]), site or "")
        return None if given is None else [[(place, fact) for place, fact in json.loads(text)] for text in given]

    def absent(self) -> str:
        """The processes that have no batch next to this one's newest; empty if there are none."""
        parts = self._gradient_state.absent_parts
        if not parts:
            return ""
        shards = self._life.strategy.data_shards
        whose = "rank(s)" if shards == self._life.strategy.world_size else "the processes of part(s)"
        return f"{whose} {', '.join(map(str, parts))} of {shards}"


def describe_leaves(data: Any, name: str, free_dims: int = 0) -> list[Row]:
    """The leaves of ``data``: the place and the description of each.

    Args:
        data: A nested structure.
        name: The argument that it was given as.
        free_dims: The number of leading dimensions whose sizes may differ between processes.
    """
    return [(place, _describe(leaf, free_dims)) for place, leaf in leaves(data, name)]


def _describe(leaf: Any, free_dims: int) -> str:
    if isinstance(leaf, Tensor):
        fact = describe_tensor(leaf)
        if not free_dims:
            return fact
        sizes = [*"*" * min(free_dims, leaf.dim()), *map(str, leaf.shape[free_dims:])]
        return f"({', '.join(sizes)}{',' if leaf.dim() == 1 else ''}) {fact.partition(') ')[2]}"
    if isinstance(leaf, Real):
        return "number"
    is_empty = isinstance(leaf, list | tuple | Mapping) and not leaf
    return "None" if leaf is None else f"{'empty ' if is_empty else ''}{type(leaf).__name__}"


def is_tensor_row(row: Row) -> bool:
    """Whether what is there is a tensor, or nothing that a collective would exchange."""
    place, fact = row
    return place in _HEADINGS or fact == "None" or fact.startswith(("(", "empty "))


def refuse_difference(given: Sequence[Sequence[Row]] | None) -> None:
    """Raise the error for what the ranks gave, by rank, unless it is ``None``.

    Raises:
        ConfigurationError: It is not.
    """
    if given is not None:
        raise ConfigurationError(_difference(given))


def _difference(given: Sequence[Sequence[Row]]) -> str:
    """The message for what the ranks gave, by rank: the first difference."""
    for rows in zip_longest(*given):
        if len(set(rows)) == 1:
            continue
        present = [row for row in rows if row is not None]
        place, call = present[0][0], given[0][0][1]
        is_one_place = len(present) == len(rows) and len({row[0] for row in rows}) == 1
        facts = by_rank([_fact(row, is_one_place) for row in rows])
        if place == "line":
            return (
                f"{call}: called from different lines in different processes (debug=True): {facts}. Every process has "
                "to make the same calls in the same order."
            )
        if place == PADDING:
            return (
                f"{call}: the loaders of the processes are at different batches; real items by part of the data: "
                f"{facts}. Call it in every process for the same batch."
            )
        at = f" at {place}" if is_one_place else ""
        return (
            f"{call}: structures, shapes or dtypes differ between processes{at}: {facts}. Pass the same in every "
            "process; pad_across_processes makes shapes equal, and gather_object takes lists of anything."
        )
    raise AssertionError("nothing differs")


def _fact(row: Row | None, is_one_place: bool) -> str:
    if row is None:
        return "nothing more"
    return row[1] if is_one_place else f"{row[0]} {row[1]}"


def announce(strategy: Strategy, call: str, site: str, facts: str) -> list[str] | None:
    """Compare ``facts`` over all processes; see :meth:`Strategy.differing`.

    Not by a collective, where the run has a store: a process that is in another collective, such as that of a backward
    pass, or in none, is named and not mixed up with this one.

    Args:
        strategy: Of the run.
        call: The collective.
        site: The user's line that calls it.
        facts: What to compare.

    Raises:
        ConfigurationError: The processes are in different collectives.
        LaunchError: A process has not announced a collective within the strategy's ``timeout``, or has failed.
    """
    board = strategy.board if isinstance(strategy, ProcessGroupStrategy) else None
    if board is None:
        return strategy.differing(call, facts, site)
    number = board.meetings["announced"] = board.meetings.get("announced", -1) + 1
    board.set(f"announced/{number}/{strategy.global_rank}", json.dumps((call, site, facts)).encode())
    situation = f"rank {strategy.global_rank} is in {call} at {site}"
    _wait(board, strategy.world_size, f"announced/{number}", situation)
    given = [json.loads(board.get(f"announced/{number}/{rank}")) for rank in range(strategy.world_size)]
    if number:  # which all have read, since they are here
        board.delete(f"announced/{number - 1}/{strategy.global_rank}")
    return differing_facts(given)


def _wait(board: Board, world_size: int, place: str, situation: str) -> None:
    absent = list(range(world_size))
    begin = time.monotonic()
    limit = board.timeout.total_seconds()
    for seconds in (min(ABSENT_SECONDS, limit), limit):
        absent = board.absent(place, absent, begin + seconds - time.monotonic())
        if not absent:
            return
        if seconds < limit:
            logger.warning("%s, and waits for rank(s) %s", situation, ", ".join(map(str, absent)))
    raise LaunchError(
        f"{situation} (debug=True); rank(s) {', '.join(map(str, absent))} did not call a collective of the Runtime "
        f"within {board.timeout}. Every process has to make the same calls in the same order."
    )


class ProcessControl:
    """Makes processes wait for each other.

    Args:
        life: Of the run.
        agreement: Compares what the processes are about to do.
    """

    def __init__(self, life: Life, agreement: Agreement) -> None:
        self._life, self._agreement = life, agreement
        self.is_triggered = False
        """Whether this process has called :meth:`core.Runtime.set_trigger`."""

    def wait(self, call: str, name: str | None = None) -> None:
        """Wait until every process has called this.

        Args:
            call: The method of the Runtime, for messages.
            name: What tells this place from others.
        """
        strategy = self._life.live()
        self._agreement.agree(call if name is None else f"{call}({name!r})")
        strategy.barrier(name)

    @contextmanager
    def first(self, name: str, is_first: bool, per_node: bool) -> Iterator[None]:
        """A context that one process leaves before others enter it.

        Args:
            name: The method of the Runtime, for messages.
            is_first: Whether it is this process.
            per_node: Whether one process of each machine goes first, before those of that machine.
        """
        strategy = self._life.live()
        node = strategy.node_rank if per_node else 0
        site = call_site() if self._agreement.debug else None

        def meet(error: BaseException | None = None) -> None:
            self._agreement.agree(name, site=site)
            text = None if error is None else f"{type(error).__name__}: {error}"
            for rank, (at, failure) in enumerate(strategy.all_gather_object((node, text))):
                if failure is not None and at == node and not is_first:
                    raise LaunchError(f"{name}: rank {rank}, which went first, failed: {failure}")

        if not is_first:
            meet()
            yield
            return
        try:
            yield
        except BaseException as error:
            meet(error)
            raise
        meet()

    def check_trigger(self) -> bool:
        """See :meth:`core.Runtime.check_trigger`."""
        strategy = self._life.live()
        self._agreement.agree("check_trigger")
        flag = torch.tensor(int(self.is_triggered), device=strategy.root_device)
        with strategy.assume_alike():
            is_triggered = bool(strategy.reduce(flag, "max"))
        if is_triggered:
            self.is_triggered = False
        return is_triggered
