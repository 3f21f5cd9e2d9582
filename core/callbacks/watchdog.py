"""Ends a run that hangs, and says which process did not come, and where it is."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..strategies.first_failure import Failures
from ..strategies.launchers.cause import print_error
from ..strategies.stack_exchange import Whereabouts
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

_SPARE_SECONDS = 10.0
"""How much later than the limit the process ends if Python's lock is held, so that the thread cannot run."""


class Watchdog(Callback):
    """Ends the run, with exit code 1, if a batch takes too long; says which process did not come, and where it is.

    A collective has a time limit too, the strategy's ``timeout``, but that must also allow for slow saves and for
    compilation. The watchdog does not count saves: from ``on_save_checkpoint`` until the next batch it waits. Add it to
    the callbacks of every process.

    Args:
        step: How long a batch may take, and the time from one to the next.
        setup: How long it may take until the first batch of training, of each epoch and of each evaluation; ``None``
            for no limit.

    Raises:
        ConfigurationError: A limit is not a positive ``timedelta``.
    """

    def __init__(self, step: timedelta = timedelta(minutes=10), setup: timedelta | None = timedelta(hours=1)) -> None:
        for name, value in {"step": step, "setup": setup}.items():
            is_none = value is None and name == "setup"
            if not is_none and not (isinstance(value, timedelta) and value > timedelta(0)):
                raise ConfigurationError(f"{name}={value!r}: must be a positive timedelta, as timedelta(minutes=10).")
        self._step = step.total_seconds()
        self._setup = None if setup is None else setup.total_seconds()
        self._limit: float | None = None
        self._since = 0.0
        self._batches = 0
        self._done: threading.Event | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_done": None}

    # -- what the loop tells -------------------------------------------------------------------------------------

    def _beat(self, limit: float | None) -> None:
        self._since, self._limit = time.monotonic(), limit

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Begin to watch."""
        self._end()
        self._batches = 0
        self._beat(self._setup)
        if trainer.world_size > 1 and Failures.current is not None:
            Failures.current.stacks.note = lambda: f"after {self._batches} batch(es) "
        self._done = threading.Event()
        arguments = (self._done, trainer.world_size)
        threading.Thread(target=self._watch, args=arguments, name="core-watchdog", daemon=True).start()

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Watch no more."""
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Watch no more."""
        self._end()

    def _end(self) -> None:
        if self._done is not None:
            self._done.set()
            self._done = None
            faulthandler.cancel_dump_traceback_later()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Workers of loaders begin."""
        self._beat(self._setup)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Like :meth:`on_train_epoch_start`."""
        self._beat(self._setup)

    on_test_start = on_predict_start = on_validation_start

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch has come."""
        self._beat(self._step)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A batch has come."""
        self._beat(self._step)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch is done."""
        self._batches += 1
        self._beat(self._step)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """The first batches after it may take longer."""
        self._beat(self._setup)

    on_train_epoch_end = on_train_end = on_test_end = on_predict_end = on_validation_end

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A save takes as long as the disk needs."""
        self._beat(None)

    # -- the thread ----------------------------------------------------------------------------------------------

    def _watch(self, done: threading.Event, world_size: int) -> None:
        limit = self._limit
        while not done.wait(min(1.0, self._step / 4)):
            limit, since = self._limit, self._since
            if limit is None:
                faulthandler.cancel_dump_traceback_later()
                continue
            left = limit - (time.monotonic() - since)
            if left > 0:
                # Its thread needs no Python: it also ends a process in which this one cannot run.
                faulthandler.dump_traceback_later(left + _SPARE_SECONDS, exit=True, file=2)
                continue
            faulthandler.cancel_dump_traceback_later()
            what = f"no batch within {limit:g} s (Watchdog), after {self._batches} batch(es) of training"
            if world_size > 1 and Failures.current is not None:
                Failures.current.end_hung(what)
            here = Whereabouts.of_main_thread(0)
            print_error(f"{what}: it is {here.place}\n{here.stack}")
            sys.stdout.flush()
            os._exit(1)
