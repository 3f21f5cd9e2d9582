"""The progress bar."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

from core.errors import ConfigurationError
from core.trainer.hooks import Callback

__all__ = ["ProgressBar"]


class ProgressBar(Callback):
    """A bar for each epoch with what was logged with ``prog_bar=True``, in process 0, drawn by tqdm.

    Between two refreshes a step costs one look at the clock; logged values are read from their device only then.

    Args:
        refresh_seconds: Time between two refreshes.

    Raises:
        ConfigurationError: tqdm is not installed.
    """

    def __init__(self, refresh_seconds: float = 0.25) -> None:
        if not self.is_available():
            raise ConfigurationError(
                "enable_progress_bar: tqdm is not installed. Valid: False, or `pip install torch-hal[progress]`."
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
        """Nothing is drawn before the first epoch."""
        self._close()

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """A new bar."""
        if not trainer.is_global_zero:
            return
        from tqdm.auto import tqdm

        last = "" if trainer.max_epochs is None else f"/{trainer.max_epochs}"
        self._bar = tqdm(
            total=trainer.num_training_batches,
            desc=f"epoch {trainer.current_epoch + 1}{last}",
            dynamic_ncols=True,
            mininterval=0,  # when to draw is decided here
            miniters=1,
        )
        self._pending = 0
        self._next = time.monotonic() + self.refresh_seconds

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count; draw when it is time."""
        self._pending += 1
        now = time.monotonic()
        if now >= self._next and self._bar is not None:
            self._next = now + self.refresh_seconds
            self._refresh(trainer.metric_log.step_values(prog_bar_only=True))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """The bar with the epoch's values, left standing."""
        if self._bar is not None:
            metrics = trainer.callback_metrics
            self._refresh({name: metrics[name] for name in sorted(trainer.prog_bar_metrics)})
        self._close()

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """Leave the line to the error."""
        self._close()

    def _refresh(self, values: dict[str, Any]) -> None:
        self._bar.set_postfix({name: f"{float(value):.4g}" for name, value in values.items()}, refresh=False)
        self._bar.update(self._pending)
        self._pending = 0

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
