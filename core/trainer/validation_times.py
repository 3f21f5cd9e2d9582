"""When a fit validates."""

from __future__ import annotations

from core.trainer.limits import validation_interval
from core.trainer.run import Run

__all__ = ["ValidationTimes"]


class ValidationTimes:
    """When validation is due in the running epoch.

    Args:
        run: The run.
        num_batches: The number of batches of the epoch; infinite if it is not known.
        is_possible: Whether there is validation at all.
    """

    def __init__(self, run: Run, num_batches: float, is_possible: bool) -> None:
        settings, self._progress = run.settings, run.progress
        epochs = settings.check_val_every_n_epoch
        self.is_possible = is_possible and (epochs is None or (self._progress.epoch + 1) % epochs == 0)
        """Whether this epoch is one with validation."""
        self._every = validation_interval(settings, num_batches) if self.is_possible else None
        self._before = self._progress.batches_before if epochs is None else 0

    @property
    def batches_left(self) -> int | None:
        """The number of batches until validation is due; ``None`` until the end of the epoch."""
        progress, every = self._progress, self._every
        if every is None:
            return None
        since = (self._before + progress.batch) % every
        # A run that is resumed may be where validation is due and not yet done.
        return 0 if not since and 0 < progress.batch != progress.validated else every - since

    def is_due(self, is_last: bool) -> bool:
        """Whether validation is due after the newest batch that was trained on.

        Args:
            is_last: Whether that batch is the last of the epoch.
        """
        progress, every = self._progress, self._every
        if every is None:
            return self.is_possible and is_last
        return progress.batch > 0 and (self._before + progress.batch) % every == 0
