"""The passes over loaders that have begun and not ended, by the time of their newest batch."""

from __future__ import annotations

from typing import Protocol

from ..logging import get_logger
from .shards import Real
from .workers import Workers

logger = get_logger(__name__)


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
