"""The progress bar: tqdm's on a terminal or in a notebook, elsewhere a line now and then."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ConfigurationError
from ...hints.argument_checks import check_count
from ...hints.remedies import package
from ..base import Callback

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

LINE_SECONDS = 60.0
"""The time between two lines where no bar can be drawn."""

MEMORY_SECONDS = 1.0
"""The time between two looks at the memory."""
_TITLES = {"sanity_check": "sanity check", "validate": "validation", "test": "test", "predict": "prediction"}


def draws_bars() -> bool:
    """Whether the standard error stream is a terminal, or the cell of a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Written(Protocol):
    """What a progress bar writes."""

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Write ``batches`` more, with ``values``."""

    def close(self) -> None:
        """Leave the line."""


class Bar:
    """A bar.

    Args:
        title: What stands before it.
        total: The number of batches; ``None`` if it is not known.
        initial: The number of batches that are done already.
        leave: Whether it stays on the screen at its end.
        position: How many lines below the cursor; ``None`` for below those that are open.
    """

    def __init__(self, title: str, total: int | None, initial: int, leave: bool, position: int | None) -> None:
        from tqdm.auto import tqdm

        self._tqdm = tqdm(
            total=total,
            desc=title,
            initial=initial,
            leave=leave,
            position=position,
            **_width(),
            mininterval=0,  # when to draw is decided by the callback
            miniters=1,
        )

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._tqdm.set_description(title, refresh=False)
        self._tqdm.set_postfix({}, refresh=False)
        self._tqdm.reset(total)

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Draw ``batches`` more, with ``values``."""
        self._tqdm.set_postfix(values, refresh=False)
        if not self._tqdm.update(batches):
            self._tqdm.refresh()

    def close(self) -> None:
        """Leave the line."""
        self._tqdm.close()


def _width() -> dict[str, Any]:
    """Tqdm's arguments for the width: 80 columns in a terminal that says it has none, as in some containers."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # a stream without a descriptor, as in a notebook
        columns = None
    return {"ncols": 80} if columns == 0 else {"dynamic_ncols": True}


class Lines:
    """Lines in place of a bar; see :class:`Bar`."""

    def __init__(self, title: str, total: int | None, initial: int) -> None:
        self.restart(title, total)
        self._done = self._initial = initial

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._title, self._total, self._done, self._initial = title, total, 0, 0
        self._began = time.monotonic()

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Write a line with ``batches`` more, with ``values``."""
        self._done += batches
        passed = time.monotonic() - self._began
        rate = (self._done - self._initial) / max(passed, 1e-9)
        done = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        pace = f" ({rate:.3g}/s)" if rate else ""
        if rate and self._total is not None and self._total > self._done:
            pace = f"{pace[:-1]}, {_duration((self._total - self._done) / rate)} left)"
        shown = "".join(f", {name}={value}" for name, value in values.items())
        sys.stderr.write(f"{self._title}: {done} batches in {_duration(passed)}{pace}{shown}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Nothing is open."""


class Memory:
    """The memory in use, for a bar; it is read at most once a second, since some devices answer slowly."""

    def __init__(self) -> None:
        self._next, self._shown = 0.0, dict[str, str]()

    def shown(self, trainer: Trainer) -> dict[str, str]:
        """``{"memory": "1.2 GB"}``; nothing if the accelerator does not report it."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + MEMORY_SECONDS
            stats = trainer.accelerator.get_device_stats(trainer.strategy.root_device)
            count = next((stats[name] for name in _MEMORY if name in stats), None)
            self._shown = {} if count is None else {"memory": f"{count / 1e9:.3g} GB"}
        return self._shown


_MEMORY = ("memory_allocated_bytes", "process_memory_bytes")


def _duration(seconds: float) -> timedelta:
    """Whole seconds, as ``0:01:30``."""
    return timedelta(seconds=int(seconds))


def drawn(values: Mapping[str, Any], style: str) -> dict[str, str]:
    """``values`` in the format ``style``, by name, and texts as they are; reading them waits for the device."""
    return {
        name: values[name] if isinstance(values[name], str) else format(float(values[name]), style)
        for name in sorted(values)
    }


class ProgressBar(Callback):
    """Shows a tqdm bar for each epoch, with the values logged with ``prog_bar=True``, in process 0.

    The bar of training also has the batches a second, the time that is left, and the memory that process 0 has
    allocated on its device (on a CPU, the resident memory of the process), which is read at most once a second.

    Validation, test, prediction and the sanity check have bars too; those within ``fit`` disappear when they are done.
    Where the standard error stream is no terminal, a line is written each minute and at the end of an epoch.

    Logged values are read from their device only when the bar is refreshed; in between, a step only looks at the clock.

    Args:
        refresh_seconds: The time between two refreshes.
        leave: Whether the bar of each epoch stays on the screen; otherwise one bar serves all epochs.

    Raises:
        ConfigurationError: tqdm is not installed.
    """

    _metrics_format = ".4g"

    def __init__(self, refresh_seconds: float = 0.25, leave: bool = True) -> None:
        self._check_available()
        self.refresh_seconds, self.leave = refresh_seconds, leave
        self._memory = Memory()
        self._training: Display | None = None
        self._evaluation: Display | None = None

    @staticmethod
    def is_available() -> bool:
        """Whether tqdm is installed."""
        return importlib.util.find_spec("tqdm") is not None

    def get_metrics(self, trainer: Trainer, pl_module: Any) -> dict[str, Any]:
        """What the bar shows at a refresh, as numbers or texts by name; override it to show something else.

        By default ``trainer.progress_bar_metrics``: what was logged with ``prog_bar=True``. Called in process 0 only.
        """
        return dict(trainer.progress_bar_metrics)

    def _values(self, trainer: Trainer, pl_module: Any) -> dict[str, str]:
        return drawn(self.get_metrics(trainer, pl_module), self._metrics_format)

    def _check_available(self) -> None:
        if not self.is_available():
            raise ConfigurationError(
                f"{type(self).__name__}: tqdm is not installed. "
                f"Run: pip install {package('torch-hal[progress]')!r}, or set "
                "enable_progress_bar=False."
            )

    # -- training ------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Close the bar of an earlier run, or leave the last one on the screen."""
        self._close()

    on_train_end = on_fit_start

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Open the bar of an epoch that is resumed, which has no start."""
        if trainer.progress.is_in_epoch:
            self._begin_epoch(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Open a bar."""
        self._begin_epoch(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch; refresh the bar if it is time."""
        if self._training is not None and self._training.count():
            self._training.show(self._values(trainer, pl_module) | self._memory.shown(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Show the values of the epoch."""
        if self._training is not None:
            self._training.show(self._values(trainer, pl_module) | self._memory.shown(trainer))
            if self.leave:
                self._close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Close the bars before the error is printed."""
        self._close()

    # -- evaluation ----------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Open a bar."""
        stage = str(trainer.run.stage)
        if trainer.is_global_zero:
            total = _total(trainer.run.batch_counts.get(stage, ()))
            self._evaluation = self._display(_TITLES[stage], total, leave=not _is_within_fit(trainer))

    on_test_start = on_predict_start = on_validation_start

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count the batch; refresh the bar if it is time."""
        if self._evaluation is not None and self._evaluation.count():
            self._evaluation.show({} if _is_within_fit(trainer) else self._values(trainer, pl_module))

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Show the values, and leave the bar on the screen."""
        if self._evaluation is not None:
            if not _is_within_fit(trainer):  # otherwise its values are shown with those of training
                self._evaluation.show(self._values(trainer, pl_module))
            self._evaluation.close()
            self._evaluation = None

    on_test_end = on_predict_end = on_validation_end

    # -- bars ----------------------------------------------------------------------------------------------------

    def _display(self, title: str, total: int | None, initial: int = 0, leave: bool = True) -> Display | None:
        """A new bar, or ``None`` for nothing."""
        if not draws_bars():
            return Display(Lines(title, total, initial), seconds=max(LINE_SECONDS, self.refresh_seconds))
        return Display(Bar(title, total, initial, leave, None), seconds=self.refresh_seconds)

    def _begin_epoch(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero:
            return
        last = "" if trainer.max_epochs == -1 else f"/{trainer.max_epochs}"
        title, total = f"epoch {trainer.current_epoch + 1}{last}", _total([trainer.num_training_batches])
        if self._training is None:
            initial = trainer.progress.batch if trainer.progress.is_in_epoch else 0
            self._training = self._display(title, total, initial)
        else:
            self._training.restart(title, total)

    def _close(self) -> None:
        for display in (self._evaluation, self._training):
            if display is not None:
                display.close()
        self._training = self._evaluation = None


class ProgressLines(ProgressBar):
    """A :class:`ProgressBar` that writes lines on a terminal too: what a Trainer has where tqdm is not installed."""

    def _check_available(self) -> None:
        pass

    def _display(self, title: str, total: int | None, initial: int = 0, leave: bool = True) -> Display | None:
        return Display(Lines(title, total, initial), seconds=max(LINE_SECONDS, self.refresh_seconds))


class TQDMProgressBar(ProgressBar):
    """A :class:`ProgressBar` that is refreshed after a number of batches, and has one bar for all epochs.

    Args:
        refresh_rate: The number of batches between two refreshes; 0 shows nothing. Each refresh waits for the device.
        process_position: How many lines below the cursor the bar is drawn.
        leave: Whether the bar of each epoch stays on the screen; otherwise one bar serves all epochs.

    Raises:
        ConfigurationError: tqdm is not installed, or a number is negative.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(leave=leave)
        check_count("refresh_rate", refresh_rate, 0)
        check_count("process_position", process_position, 0)
        self.refresh_rate, self.process_position = refresh_rate, process_position

    def _display(self, title: str, total: int | None, initial: int = 0, leave: bool = True) -> Display | None:
        if not self.refresh_rate:
            return None
        if not draws_bars():
            return super()._display(title, total, initial, leave)
        position = self.process_position + (self._training is not None) if self.process_position else None
        return Display(Bar(title, total, initial, leave, position), batches=self.refresh_rate)


class Display:
    """A bar or lines, and when to write the next time: after so many seconds, or so many batches."""

    def __init__(self, written: Written, seconds: float = 0.0, batches: int | None = None) -> None:
        self._written, self._seconds, self._batches = written, seconds, batches
        self._pending, self._next = 0, time.monotonic() + seconds

    def count(self) -> bool:
        """Count a batch; whether it is time to show it."""
        self._pending += 1
        if self._batches is not None:
            return self._pending >= self._batches
        return time.monotonic() >= self._next

    def show(self, values: dict[str, str]) -> None:
        """Write what was counted, with ``values``."""
        self._next = time.monotonic() + self._seconds
        self._written.show(self._pending, values)
        self._pending = 0

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._pending = 0
        self._written.restart(title, total)

    def close(self) -> None:
        """Leave the line."""
        self._written.close()


def _total(batches: Sequence[float]) -> int | None:
    """The batches of all loaders; ``None`` if it is not known."""
    total = sum(batches)
    return None if math.isinf(total) else int(total)


def _is_within_fit(trainer: Trainer) -> bool:
    return trainer.train_dataloader is not None or trainer.sanity_checking
