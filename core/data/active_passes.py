"""Where passes over loaders start; those that have begun and not ended, by the time of their newest batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

from ..logging import get_logger
from .rank_comparison import facts_of_items
from .seeds import replayed
from .shards import Real
from .streams import TO_BEGIN, watched
from .workers import Workers

logger = get_logger(__name__)


class Start:
    """Where a pass over a loader starts.

    Args:
        epoch: The number of the pass.
        offset: How far into the data, in the units of :attr:`Reading.units`.
        batches: How many batches that is.
        rng: The state of the host's generators at the start of the pass that is continued; ``None`` for now.
        is_same_world: Whether the pass that is continued had as many processes.
        inner: The state of a ``StatefulDataLoader``, which finds the position by itself; ``None`` for others.
        generators: The states of the loader's own generators at the start of the pass that is continued.
        drawn_from: The states of both at its first batch: a loader without workers draws its order then.
        memory: What was known of earlier passes at the start of the pass that is continued; see :meth:`Reading.memory`.
        first: What distinguishes the first batch of the pass that is continued from others, on as many processes;
            ``None`` if unknown.
        own: The loader's own generators.
    """

    kept = ("offset", "batches", "rng", "generators", "drawn_from", "memory", "first")
    """The arguments that a position holds."""

    def __init__(
        self,
        epoch: int,
        offset: int = 0,
        batches: int = 0,
        rng: dict[str, Any] | None = None,
        is_same_world: bool = True,
        inner: dict[str, Any] | None = None,
        generators: list[Any] | None = None,
        drawn_from: tuple[dict[str, Any] | None, list[Any]] | None = None,
        memory: dict[str, Any] | None = None,
        first: list[int] | None = None,
        own: Sequence[Any] = (),
    ) -> None:
        self.epoch, self.offset, self.batches, self.rng = epoch, offset, batches, rng
        self.is_same_world, self.inner = is_same_world, inner
        self.generators, self.memory, self.first = generators, memory, first if is_same_world else None
        self.drawn_from, self._own = drawn_from, own
        self._has_noted = False

    def replay(self) -> AbstractContextManager[None]:
        """A context in which what the first part of the pass drew is drawn again."""
        return replayed(self.rng, self._own, self.generators)

    def replay_order(self) -> AbstractContextManager[None]:
        """Within :meth:`replay`, a context in which the order is drawn again."""
        rng, generators = self.drawn_from or (None, None)
        return replayed(rng, self._own, generators)

    def notes(self, batch: Any, loader: Any) -> Any:
        """Note the first batch of the pass over ``loader``, the user's own; a warning if it is not :attr:`first`."""
        if not self._has_noted:
            self._has_noted, before, self.first = True, self.first, facts_of_items([batch])
            if before not in (None, self.first):
                logger.warning(
                    "position in the data: this pass over %s begins with another batch than the one that is continued, "
                    "so as many batches are skipped, but not those that were seen. %s",
                    type(getattr(loader, "dataset", loader)).__name__,
                    TO_BEGIN,
                )
        return batch

    def noted(self, batches: Iterator[Any], loader: Any) -> Iterator[Any]:
        """``batches`` of the pass over ``loader`` from here on, with :meth:`notes`, and watched for equal workers."""
        batches = watched(batches, loader)
        if self.batches:
            return batches
        # No generator: the end of it would close one of the user's, which may go on in the next pass.
        return chain(map(partial(self.notes, loader=loader), islice(batches, 1)), batches)


class ActivePass(Protocol):
    """One pass, as :class:`ActivePasses` records it."""

    @property
    def loader(self) -> object:
        """The prepared loader; ``None`` after the end of the pass."""

    def is_last(self) -> bool:
        """Whether no batch comes after the newest."""

    def num_left(self) -> int | None:
        """The number of batches after the newest; ``None`` where the length of the data is unknown."""

    def real(self) -> Real | None:
        """Like :attr:`core.data.PreparedLoader.real_samples`, for this pass."""

    def absent(self) -> tuple[int, ...]:
        """The parts of the data that have no batch next to the newest batch of this part."""


class ActivePasses:
    """The passes over a run's loaders that have yielded a batch and have not ended.

    A pass ends when its data does, when its iterator is closed, or when nothing refers to the iterator any more: so
    also when a ``for`` loop is left by ``break``.
    """

    def __init__(self) -> None:
        self.newest: ActivePass | None = None
        """The pass that has yielded the newest batch of all; ``None`` outside of all loops."""
        self._active: list[ActivePass] = []
        self.num_ended = 0
        """How many passes have ended."""
        self.workers = Workers()
        """The workers of the run's loaders."""

    def end(self) -> None:
        """At the end of the run: forget the passes, and end the workers."""
        self.newest, self._active = None, []
        self.workers.end()

    def yields(self, running: ActivePass) -> None:
        """``running`` yields a batch: what it says of that batch now holds for the code that follows."""
        if self.newest is running:
            return
        self._remove(running)
        self._active.append(running)
        self.newest = running

    def ends(self, running: ActivePass) -> None:
        """``running`` has ended; the loop around it, if any, is in its own pass again."""
        self._remove(running)
        self.newest = self._active[-1] if self._active else None
        self.num_ended += 1

    def _remove(self, running: ActivePass) -> None:
        if running in self._active:
            self._active.remove(running)

    def __reduce__(self) -> tuple[type[ActivePasses], tuple[()]]:
        return ActivePasses, ()  # another process iterates over nothing yet


def warn_of_position(saved: list[int], here: list[int], running: ActivePass | None) -> None:
    """Warn if a position within a pass, which is loaded, is not one of this data, or comes too late for ``running``.

    Args:
        saved: What :func:`data_set_facts` said where the position was taken.
        here: What it says here.
        running: The newest pass.
    """
    if saved != here:
        logger.warning(
            "position in the data: it was taken in other data, of length %s, and this data has length %s. As many "
            "items are skipped, but not those that were seen. For new data, load a position after the end of an epoch",
            *(facts[0] if facts else "unknown" for facts in (saved, here)),
        )
    if running is not None and running.loader is not None:
        logger.warning(
            "position in the data: a pass over the loader has begun already and goes on where it is; the position "
            "counts for the next pass. Load it before iter(loader)"
        )
