"""The batches that a fit trains on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from core.data import in_order, prepare_loader
from core.trainer.limits import agreed_length, length_of, limited
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
        strategy = run.runtime.strategy
        if loader is None:
            nothing: Any = ()
            self.loader = prepare_loader(nothing, strategy, sharded=True)
        else:
            self.loader = prepare_loader(in_order(loader) if run.settings.overfit_batches else loader, strategy)
        self.num_batches = self._agree(length_of(self.loader))
        """The number of batches of the running epoch in each process; infinite if it is not known."""

    def _agree(self, own: float) -> float:
        settings = self._run.settings
        # The processes would wait for each other in a step that not all of them take.
        length = agreed_length(self._run.runtime.strategy, own, smallest=True)
        self._is_complete = length == own and settings.limit_train_batches is None
        return limited(length, settings.limit_train_batches, "limit_train_batches")

    def begin_epoch(self) -> None:
        """Go to the running epoch; every process calls it."""
        progress, loader = self._run.progress, self.loader
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
        batches = enumerate(islice(loader, stop), first)
        if is_known or size == 1:
            return ((index, batch, (index + 1) % size == 0 or index + 1 == num) for index, batch in batches)
        return (
            (index, batch, (index + 1) % size == 0 or index + 1 == num or loader.end_of_dataloader)
            for index, batch in batches
        )
