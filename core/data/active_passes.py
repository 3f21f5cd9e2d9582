"""The passes over loaders that have begun and not ended, by the time of their newest batch."""

from __future__ import annotations

from typing import Protocol

from .shards import Real
from .workers import Workers

__all__ = ["ActivePass", "ActivePasses"]


class ActivePass(Protocol):
    """What :class:`ActivePasses` knows of a pass."""

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
        """The parts of the data that have no more batch, where this part has its newest."""


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
