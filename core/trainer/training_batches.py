"""The batches that a fit trains on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from core.data import PreparedCombined
from core.trainer.limits import agreed_length, length_of, limited
from core.trainer.loaders import training_loader
from core.trainer.run import Run

__all__ = ["TrainingBatches"]


class TrainingBatches:
    """The batches of each epoch, of which all processes take the same number.

    Args:
        run: The run.
        loader: The user's own loader; ``None`` for no batches.
    """

    def __init__(self, run: Run, loader: Any) -> None:
        self._run = run
        self.loader = training_loader(run, loader)
        self._limit_parts()
        self.num_batches = self._agree(length_of(self.loader))
        """The number of batches of the running epoch in each process; infinite if it is not known."""

    def _agree(self, own: float) -> float:
        # The processes would wait for each other in a step that not all of them take.
        length = agreed_length(self._run.runtime.strategy, own, smallest=True)
        if isinstance(self.loader, PreparedCombined):  # limited in each of its loaders
            self._is_complete = False
            return length
        limit = self._run.settings.limit_train_batches
        self._is_complete = length == own and limit is None
        return limited(length, limit, "limit_train_batches")

    def _limit_parts(self) -> None:
        loader, limit = self.loader, self._run.settings.limit_train_batches
        if isinstance(loader, PreparedCombined):
            loader.limits = [limited(length_of(part), limit, "limit_train_batches") for part in loader.flattened]

    def reload(self, loader: Any) -> None:
        """Take the batches of another loader of the user's, from the next epoch on; every process calls it."""
        self.loader = training_loader(self._run, loader)

    def begin_epoch(self) -> None:
        """Go to the running epoch; every process calls it."""
        progress, loader = self._run.progress, self.loader
        self._limit_parts()
        loader.set_epoch(progress.epoch)
        first = progress.batch if progress.is_in_epoch else 0
        try:
            own: float = first + loader.batches_left
        except TypeError:  # a stream
            own = math.inf
        self.num_batches = self._agree(own)

    @property
    def is_last(self) -> bool:
        """Whether the newest batch is the last of its epoch."""
        if math.isinf(self.num_batches):
            return self.loader.end_of_dataloader
        return self.loader.batches_taken >= self.num_batches

    def iterate(self) -> Iterator[tuple[int, Any, bool]]:
        """The number of each batch that is left of the epoch, the batch, and whether the optimizer steps after it."""
        loader, first, num = self.loader, self._run.progress.batch, self.num_batches
        size, is_known = self._run.settings.accumulate_grad_batches, math.isfinite(length_of(loader))
        stop = None if self._is_complete or math.isinf(num) else max(int(num) - first, 0)
        batches = enumerate(self._run.batch_hooks.applied(islice(loader, stop)), first)
        if is_known or size == 1:
            return ((index, batch, (index + 1) % size == 0 or index + 1 == num) for index, batch in batches)
        return (
            (index, batch, (index + 1) % size == 0 or index + 1 == num or loader.end_of_dataloader)
            for index, batch in batches
        )
