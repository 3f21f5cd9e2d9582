"""An epoch of a fit: the batches that it trains on, and the times at which it validates."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

import torch

from ...callbacks.agreement import SharedClock
from ...data import PreparedCombined
from ...data.shards import read_end
from ...errors import ConfigurationError
from ..fit_warnings import warn_of_short_epoch, warn_of_waiting
from ..run_context import RunContext
from ..settings import Settings
from .data_sources import agreed_length, length_of, limited, training_loader

_END: Any = object()
"""In place of a batch, where there is none."""

MEASURED_SECONDS, MEASURED_BATCHES = 10.0, 10
"""How long the waits for batches are measured at least, before it is decided whether they are too long."""


class TrainingBatches:
    """The batches of each epoch. All processes take the same number.

    Args:
        context: Of the fit.
        loader: The user's own loader; ``None`` for no batches.
    """

    def __init__(self, context: RunContext, loader: Any) -> None:
        self._context = context
        self.loader = training_loader(context, loader)
        self._limit_parts()
        self._differs = False
        """Whether processes read streams of their own, of which one may end before the others."""
        self._others_end = False
        """Whether another process has no batch after this one."""
        self._waited, self._worked, self._waits = 0.0, 0.0, 0
        """The seconds of the measured waits for batches, of the steps between them, and the number of both."""
        self._ahead = 0.0
        """The seconds of a wait within a step, for the batch after it: a stream is asked whether there is one."""
        self._measures = context.runtime.strategy.is_global_zero
        """Whether the waits are measured: in process 0, until it is known whether they are too long."""
        self.num_batches = self._agree(length_of(self.loader))
        """The number of batches of the running epoch in each process; infinite if it is not known."""

    def _agree(self, own: float) -> float:
        # The processes would wait for each other in a step that not all of them take.
        strategy, settings = self._context.runtime.strategy, self._context.settings
        length = agreed_length(strategy, own, smallest=True)
        if strategy.data_shards > 1 and not settings.use_distributed_sampler:
            self._differs = math.isinf(agreed_length(strategy, own, smallest=False))
        if not isinstance(self.loader, PreparedCombined):  # that is limited in each of its loaders
            length = limited(length, settings.limit_train_batches, settings.source_of("limit_train_batches"))
        # A pass is read to its end: it draws numbers there, on which the next order depends.
        self._is_complete = length == own
        return length

    def _limit_parts(self) -> None:
        loader, settings = self.loader, self._context.settings
        if isinstance(loader, PreparedCombined):
            limit, source = settings.limit_train_batches, settings.source_of("limit_train_batches")
            lengths = [length_of(part) for part in loader.flattened]
            limits = [limited(length, limit, source) for length in lengths]
            loader.limits = [math.inf if one == length else one for one, length in zip(limits, lengths, strict=True)]

    def reload(self, loader: Any) -> None:
        """Take the batches of another loader of the user's, from the next epoch on; every process calls it."""
        self.loader = training_loader(self._context, loader)

    def begin_epoch(self) -> None:
        """Go to the running epoch; every process calls it."""
        progress, loader = self._context.progress, self.loader
        self._others_end = False
        loader.set_epoch(progress.epoch)
        self._limit_parts()
        first = progress.batch if progress.is_in_epoch else 0
        try:
            own: float = first + loader.batches_left
        except TypeError:  # a stream
            own = math.inf
        self.num_batches = self._agree(own)
        if progress.phase == "end":  # a resumed run, whose pass ended in the run before, maybe before its end was read
            loader.leave_ended_pass()

    @property
    def is_last(self) -> bool:
        """Whether the newest batch is the last of its epoch."""
        if math.isinf(self.num_batches):
            asked = time.monotonic() if self._measures else 0.0
            is_last = self.loader.end_of_dataloader or self._others_end
            self._ahead += time.monotonic() - asked if self._measures else 0.0
            return is_last
        return self.loader.batches_taken >= self.num_batches or self._others_end

    def iterate(self) -> Iterator[tuple[int, Any, bool]]:
        """The number of each batch that is left of the epoch, the batch, and whether the optimizer steps after it."""
        loader, first, num = self.loader, self._context.progress.batch, self.num_batches
        size, is_known = self._context.settings.accumulate_grad_batches, math.isfinite(length_of(loader))
        all_left: Iterator[Any] = iter(self._until_one_ends() if self._differs else loader)
        taken = all_left if math.isinf(num) else islice(all_left, max(int(num) - first, 0))
        if self._is_complete and not math.isinf(num):
            taken = chain(taken, read_end(all_left, int(num)))
        if self._measures and not self._differs:
            taken = chain(self._measured(taken), taken)
        batches = enumerate(self._context.batch_hooks.applied(taken), first)
        if size == 1 or (is_known and not self._differs):
            return ((index, batch, (index + 1) % size == 0 or index + 1 == num) for index, batch in batches)
        return ((index, batch, (index + 1) % size == 0 or index + 1 == num or self.is_last) for index, batch in batches)

    def _measured(self, batches: Iterator[Any]) -> Iterator[Any]:
        """``batches``; it is measured for some steps how long they wait for them.

        What comes first in an epoch does not count: workers start, and steps are compiled.
        """
        begun = 0.0
        for number in count():
            asked = time.monotonic()
            batch = next(batches, _END)
            if batch is _END:
                return
            if number > 1:
                self._waited += time.monotonic() - asked + self._ahead
                self._worked += asked - begun - self._ahead
                self._waits += 1
                if self._waits >= MEASURED_BATCHES and self._waited + self._worked >= MEASURED_SECONDS:
                    self._measures = False
                    if self._waited > self._worked:
                        warn_of_waiting(self._context, self.loader, self._waits, self._waited, self._worked)
                    yield batch
                    return
            begun, self._ahead = time.monotonic(), 0.0
            yield batch

    def _until_one_ends(self) -> Iterator[Any]:
        """The batches until a process has no further one. Before each, the processes exchange a number."""
        batches = iter(self.loader)
        batch = next(batches, _END)
        if self._in_any(batch is _END):
            return
        while True:
            self._others_end = self._in_any(self.loader.end_of_dataloader)
            yield batch
            if self._others_end:
                return
            batch = next(batches)

    def _in_any(self, value: bool) -> bool:
        strategy = self._context.runtime.strategy
        return bool(strategy.reduce(torch.tensor(int(value), device=strategy.root_device), "max"))


class ValidationTimes:
    """When validation is due in the running epoch.

    Args:
        context: Of the fit.
        num_batches: The number of batches of the epoch; infinite if it is not known.
        is_possible: Whether there is validation at all.
        clock: What counts the time since the last validation, where that decides.
    """

    def __init__(self, context: RunContext, num_batches: float, is_possible: bool, clock: SharedClock | None) -> None:
        settings, self._progress = context.settings, context.progress
        self._strategy, self._clock = context.runtime.strategy, clock
        self._asked_at, self._is_time = -1, False
        epochs = settings.check_val_every_n_epoch
        self.is_possible = is_possible and (epochs is None or (self._progress.epoch + 1) % epochs == 0)
        """Whether this epoch is one with validation."""
        self._every = _interval(settings, num_batches) if self.is_possible else None
        self._is_first = epochs is not None and self._progress.epoch < epochs
        self._before = self._progress.batches_before if epochs is None else 0

    @property
    def batches_left(self) -> int | None:
        """The number of batches until validation is due; ``None`` until the end of the epoch."""
        progress, every = self._progress, self._every
        if self._clock is not None and self.is_possible:
            return self._clock.steps_left(progress.total_batches, self._strategy)
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
        if self._clock is not None:
            return self.is_possible and self._is_time_over(self._clock)
        if every is None:
            return self.is_possible and is_last
        return progress.batch > 0 and (self._before + progress.batch) % every == 0

    def _is_time_over(self, clock: SharedClock) -> bool:
        """Whether the time is over after the newest batch; asked once, as processes may ask each other."""
        now = self._progress.total_batches
        if self._asked_at != now:
            self._asked_at, self._is_time = now, clock.is_due(now, self._strategy)
        return self._is_time

    def end_batches(self) -> None:
        """Warn if the first epoch that could have a validation was too short for one."""
        if self._is_first and self._every is not None and self._progress.batch < self._every:
            warn_of_short_epoch(self._progress, self._every)

    def restart(self) -> None:
        """Count the time from now on: a validation is over."""
        if self._clock is not None:
            self._clock.restart(self._progress.total_batches)


def _interval(settings: Settings, num_batches: float) -> int | None:
    """The number of training batches from one validation to the next; ``None`` for one at the end of an epoch.

    Args:
        settings: Of the run.
        num_batches: The number of batches of the epoch; infinite if it is not known.

    Raises:
        ConfigurationError: The interval does not fit the number of batches.
    """
    interval = settings.val_check_interval
    if isinstance(interval, int):
        if interval > num_batches and settings.check_val_every_n_epoch is not None:
            raise ConfigurationError(
                f"val_check_interval={interval}: an epoch has only {num_batches} batches, so validation would never "
                "run. Give a smaller number; or set check_val_every_n_epoch=None to count batches over all epochs, or "
                "limit_val_batches=0 for no validation."
            )
        return interval
    if interval == 1.0 or not isinstance(interval, float):  # a time is no number of batches
        return None
    if math.isinf(num_batches):
        raise ConfigurationError(
            f"val_check_interval={interval}: the training loader has no length, so there is no fraction of an epoch. "
            "Give a number of batches as an integer."
        )
    return max(int(num_batches * interval), 1)
