"""The progress bar."""

from __future__ import annotations

import importlib.util
import math
import time
from typing import Any

from core.callbacks.base import Callback
from core.errors import ConfigurationError

__all__ = ["ProgressBar"]


class ProgressBar(Callback):
    """Shows a tqdm bar for each epoch, with the values logged with ``prog_bar=True``, in process 0.

    Logged values are read from their device only when the bar is refreshed; in between, a step only looks at the clock.

    Args:
        refresh_seconds: The time between two refreshes.

    Raises:
        ConfigurationError: tqdm is not installed.
    """

    def __init__(self, refresh_seconds: float = 0.25) -> None:
        if not self.is_available():
            raise ConfigurationError(
                "ProgressBar: tqdm is not installed. Run: pip install 'torch-hal[progress]', or set "
                "enable_progress_bar=False."
            )
        self.refresh_seconds = refresh_seconds
        self._bar: Any = None
        self._next = 0.0
        self._pending = 0

    @staticmethod
    def is_available() -> bool:
        """Whether tqdm is installed."""
        return importlib.util.find_spec("tqdm") is not None

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Close the bar of an earlier run."""
        self._close()

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Open a bar."""
        if not trainer.is_global_zero:
            return
        from tqdm.auto import tqdm

        last = "" if trainer.max_epochs == -1 else f"/{trainer.max_epochs}"
        self._bar = tqdm(
            total=None if math.isinf(trainer.num_training_batches) else trainer.num_training_batches,
            desc=f"epoch {trainer.current_epoch + 1}{last}",
            dynamic_ncols=True,
            mininterval=0,  # when to draw is decided here
            miniters=1,
        )
        self._pending = 0
        self._next = time.monotonic() + self.refresh_seconds

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch; refresh the bar if it is time."""
        self._pending += 1
        now = time.monotonic()
        if now >= self._next and self._bar is not None:
            self._next = now + self.refresh_seconds
            self._refresh(trainer.metric_log.stage.step_values(prog_bar_only=True))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Show the values of the epoch, and leave the bar on the screen."""
        if self._bar is not None:
            metrics = trainer.callback_metrics
            self._refresh({name: metrics[name] for name in sorted(trainer.prog_bar_metrics)})
        self._close()

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """Close the bar before the error is printed."""
        self._close()

    def _refresh(self, values: dict[str, Any]) -> None:
        self._bar.set_postfix({name: f"{float(value):.4g}" for name, value in values.items()}, refresh=False)
        self._bar.update(self._pending)
        self._pending = 0

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
