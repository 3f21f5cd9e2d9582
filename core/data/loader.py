"""Prepared loaders: this process's share of the batches, on this process's device, at a known position."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import attrs
from torch.utils.data import DataLoader

from ..errors import CheckpointError, ConfigurationError, quoted
from ..hints.remedies import add_remedy
from ..random import get_host_rng_state
from ..utilities.torch_private import DataLoaderIterator, num_yielded
from .active_passes import ActivePasses, Start, warn_of_position
from .dispatch import Dispatch
from .loader_structure import Epochs, generators_of
from .rank_comparison import Comparison, data_set_facts
from .reading import MapReading, Reading, check_length
from .seeds import PassSeeds, seeded, set_states
from .shards import Real, Share, read_end
from .transfer import Transfer


class PreparedLoader(DataLoader[Any]):
    """This process's share of a loader's batches, each on the run's device.

    Each pass is an epoch: a shuffling loader draws a new order for each, the same in every process. It has every
    attribute of the loader that it was made of.

    Args:
        reading: How the user's loader is read.
        share: Which part of the data it reads.
        seeds: What the order of each pass is drawn from; ``None`` to draw it as plain torch does.
        transfer: Copies batches to the device; ``None`` leaves them.
        dispatch: How one process reads for all; ``None`` where each reads.
        is_evaluation: Whether it is for evaluation.
        active: Where its passes say that they yield a batch; a new registry by default.
        compare: Compares what the processes read at the start of the first pass; ``None`` where each reads its own.
    """

    def __init__(
        self,
        reading: Reading,
        share: Share,
        seeds: PassSeeds | None = None,
        transfer: Transfer | None = None,
        dispatch: Dispatch | None = None,
        is_evaluation: bool = False,
        active: ActivePasses | None = None,
        compare: Comparison | None = None,
    ) -> None:
        # Not DataLoader's own: this is one by its interface, and takes every attribute from the user's loader.
        self._reading, self._share, self._seeds, self._transfer = reading, share, seeds, transfer
        self._dispatch, self.is_evaluation = dispatch, is_evaluation
        self._active = ActivePasses() if active is None else active
        self._compare = compare
        self.on_pass: Callable[[], None] | None = None
        """Called in each process when a pass has begun that is not resumed: only some may have drawn numbers for it."""
        reading.workers = self._active.workers
        self._generators = generators_of(reading.own)
        self._progress = _Progress(Epochs(reading.own))
        self._skip = 0

    @property
    def units(self) -> int:
        """How far a batch moves in the data: items, or batches where the loader has its own batch sampler."""
        return self._reading.units if self._dispatch is None else self._dispatch.units

    def __getattr__(self, name: str) -> Any:
        if name in ("_reading", "_DataLoader__initialized"):
            raise AttributeError(name)
        return getattr(self._reading.own, name)

    # -- passes --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the next pass, from 0."""
        return self._progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass number ``epoch``.

        A position that was loaded within that pass is kept, and one in another pass is dropped. One at the end of the
        pass before is the start of this one.
        """
        progress = self._progress
        if progress.pending is not None and progress.pending["epoch"] == epoch - 1:
            self.leave_ended_pass()
        progress.epoch, progress.running, progress.is_told = epoch, None, True
        if progress.pending is not None and progress.pending["epoch"] != epoch:
            progress.pending = None
        progress.epochs.tell(epoch, explicit=True)  # at once, since the length may depend on it

    def __iter__(self) -> Any:
        progress = self._progress
        is_resumed = progress.pending is not None
        start, progress.pending = self._start(), None
        if not progress.is_told:
            progress.epochs.tell(start.epoch, explicit=False)
        progress.is_told = False
        running = _Pass(self, start)
        progress.running, progress.epoch = running, start.epoch + 1
        if self.on_pass is not None and not is_resumed:
            self.on_pass()
        return running.batches()

    def _start(self) -> Start:
        pending, epoch = self._progress.pending, self._progress.epoch
        start = Start(epoch)
        if pending is not None:
            kept = {name: pending[name] for name in Start.kept}
            is_same_world = pending["shards"] == self._share.shards
            start = Start(epoch, **kept, is_same_world=is_same_world, inner=pending["loader"], own=self._generators)
        if self._skip > start.batches:
            start.batches, start.offset, start.inner = self._skip, self._skip * self.units, None
        return start

    def __len__(self) -> int:
        return max(self._steps(0) - self._skip, 0)

    def _steps(self, offset: int) -> int:
        return self._reading.steps(offset) if self._dispatch is None else self._dispatch.steps(offset)

    @property
    def even_batches(self) -> bool:
        """Whether each process has the same number of batches; can be set between passes over map-style data."""
        return self._share.even

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        reading = self._reading
        if not isinstance(reading, MapReading) or self._dispatch is not None:
            raise ConfigurationError(
                f"even_batches={value!r}: cannot be changed for iterable or dispatched data. Pass it to Runtime(...)."
            )
        self._share = reading.share = reading.sampler.share = attrs.evolve(self._share, even=value)

    @property
    def is_map_style(self) -> bool:
        """Whether each process reads the items of a map-style data set by index."""
        return isinstance(self._reading, MapReading) and self._dispatch is None

    @property
    def batches_left(self) -> int:
        """The number of batches of the next pass: fewer than ``len`` where a position within a pass was loaded.

        Raises:
            TypeError: It is not known.
        """
        start = self._start()
        return self._steps(start.offset)

    @property
    def total_batch_size(self) -> int | None:
        """Items in a global batch; ``None`` where torch does not make the batches."""
        size: int | None = self._reading.own.batch_size
        return None if size is None else self._share.global_size(size)

    # -- the running pass ----------------------------------------------------------------------------------------

    @property
    def batches_taken(self) -> int:
        """How many batches of the newest pass have been handed out or skipped."""
        running = self._progress.running
        if running is not None:
            return running.start.batches + running.taken
        return 0 if self._progress.pending is None else int(self._progress.pending["batches"])

    @property
    def is_at_end(self) -> bool:
        """Whether a position after the last batch of a pass was loaded: then the next pass has no batch.

        It is false where the length of the data is unknown.
        """
        try:
            return self._progress.pending is not None and self.batches_left == 0
        except TypeError:
            return False

    def leave_ended_pass(self) -> None:
        """Make the next pass the next epoch, if the position that was loaded is at the end of a pass."""
        if self.is_at_end:
            list(read_end(iter(self), self.batches_taken))

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the newest batch is the last of its pass; where the length is unknown, the next one is read."""
        running = self._progress.running
        return running is not None and running.is_last()

    def keep_indices(self) -> None:
        """Have :attr:`newest_indices` in the passes that begin from now on."""
        self._reading.keep_indices()

    @property
    def newest_indices(self) -> list[Any] | None:
        """The indices in the data set of the newest batch's items; ``None`` where items have none, or none are kept."""
        running = self._progress.running
        return None if running is None or self._dispatch is not None else self._reading.indices(running.taken - 1)

    @property
    def real_samples(self) -> Real | None:
        """For each part of the newest global batch, the number of leading items that are not padding.

        A tuple by part of the data (by rank, for most strategies), with ``None`` for a part that is used whole; or
        ``None`` if the global batch is complete. See :func:`core.data.drop_padding`.
        """
        running = self._progress.running
        return None if running is None else running.real()

    @property
    def remainder(self) -> int:
        """The number of items in the newest global batch that are not padding; -1 if it is complete or if unknown."""
        real = self.real_samples
        return -1 if real is None or None in real else sum(count or 0 for count in real)

    # -- position ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position in the data, and what the rest of the pass depends on: tensors and plain values.

        It is the position in the newest pass; if that pass has ended, or :meth:`set_epoch` was called since, it is the
        start of the next one. Every process has its own state.
        """
        progress = self._progress
        generators, memory = [generator.get_state() for generator in self._generators], self._reading.memory()
        now: dict[str, Any] = {"generators_now": generators, "memory_now": memory}
        if progress.pending is not None:
            return {**progress.pending, **now}
        state: dict[str, Any] = {
            "epoch": progress.epoch,
            "begun": False,
            "offset": 0,
            "batches": 0,
            "shards": self._share.shards,
            "units": self.units,
            "rng": None,
            "order": None if self._seeds is None else self._seeds.state,
            "generators": generators,
            "drawn_from": None,
            "left": False,
            "loader": None,
            "memory": memory,
            "first": None,
            "data": data_set_facts(self._reading.own),
            **now,
        }
        running = progress.running
        if running is not None and not running.is_finished and (running.start.batches or running.taken):
            start = running.start
            state |= {
                "epoch": start.epoch,
                "begun": True,
                "offset": start.offset + running.taken * self.units,
                "batches": start.batches + running.taken,
                "rng": running.rng,
                "generators": running.generators,
                "drawn_from": running.drawn_from,
                "left": running.is_left,
                "loader": running.inner_state(),
                "memory": running.memory,
                "first": running.origin.first,
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any], reshard: bool = False) -> None:
        """Continue where :meth:`state_dict` was called: the next pass has the rest of the batches, in the same order.

        For evaluation, a pass that was left by ``break`` is not continued: the next one starts at the beginning.

        Args:
            state: What :meth:`state_dict` gave.
            reshard: Whether a state of another number of processes is accepted within a pass. What is left of the
                pass is then divided among this run's processes, each item once.

        Raises:
            CheckpointError: It is not a state of such a loader, or one of another number of processes.
        """
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise CheckpointError(f"state of a loader: {quoted(missing)} missing. Give what its state_dict() returned.")
        if len(state["generators"]) != len(self._generators):
            raise CheckpointError(
                f"state of a loader: has {len(state['generators'])} generator(s), the loader {len(self._generators)}. "
                "Give it a loader like the one it was taken from."
            )
        shards = self._share.shards
        is_inside = state["begun"] and not (self.is_evaluation and state["left"])
        if is_inside and state["shards"] != shards and not reshard:
            raise CheckpointError(
                f"position in the data: taken within an epoch on {state['shards']} process(es), and this run has "
                f"{shards}. Use {state['shards']}, or load_state_dict(state, reshard=True) to divide the rest again."
            )
        progress = self._progress
        if is_inside:
            warn_of_position(state["data"], data_set_facts(self._reading.own), progress.running)
        set_states(self._generators, state["generators_now"])
        self._reading.remember(state["memory_now"])
        if state["order"] is not None:
            self._seeds = PassSeeds(state["order"])
        progress.epoch = state["epoch"] + int(state["begun"] and not is_inside)
        progress.running, progress.pending, progress.is_told = None, dict(state) if is_inside else None, False


class _Progress:
    """Which passes there were; shared with the loaders that :func:`skip_first_batches` makes."""

    def __init__(self, epochs: Epochs) -> None:
        self.epochs, self.epoch, self.is_told = epochs, 0, False  # the next pass, and whether the data knows it
        self.running: _Pass | None = None
        self.pending: dict[str, Any] | None = None
        """A position that was loaded, and from which the next pass starts."""
        self.had_batches = False


class _Pass:
    """One pass over a prepared loader."""

    def __init__(self, prepared: PreparedLoader, start: Start) -> None:
        self.start, self.is_finished, self.is_left, self._has_ended = start, False, False, False
        self.loader: PreparedLoader | None = prepared
        self._active, self._share = prepared._active, prepared._share
        # Only the first pass compares.
        self._compare, prepared._compare = prepared._compare, None
        self._reading, self._dispatch, self._transfer = prepared._reading, prepared._dispatch, prepared._transfer
        self._number = self._taken = 0
        self._real: Real | None = None
        self._is_last: bool | None = None
        self._ahead: deque[tuple[Any, Real | None, bool | None]] = deque()
        if start.memory is not None:
            self._reading.remember(start.memory)
        self.memory = self._reading.memory()
        self._generators, self._is_plain = prepared._generators, prepared._seeds is None and start.rng is None
        kept = start.generators
        self.rng, self.generators = self._states() if kept is None else (start.rng, kept)
        self.drawn_from = start.drawn_from
        self._iterator = self._begin(prepared._seeds)

    def _begin(self, seeds: PassSeeds | None) -> Any:
        dispatch, reading, start = self._dispatch, self._reading, self.start
        self._yielded_before, self.origin = 0, start
        if dispatch is not None:
            self.origin = inner = copy.copy(start)
            inner.batches, inner.is_same_world = start.offset // reading.units, True
            return dispatch.parts(reading, self._read_by(reading, seeds) if dispatch.is_reader else None)
        return self._read_by(reading, seeds)

    def _read_by(self, reading: Reading, seeds: PassSeeds | None) -> Iterator[Any]:
        iterator = reading.begin(self.origin, seeds)
        self._yielded_before = num_yielded(iterator)
        return iterator if isinstance(reading, MapReading) else self.origin.noted(iterator, reading.own)

    def batches(self) -> Iterator[Any]:
        """The iterator that the user gets."""
        is_direct = (
            self._transfer is None
            and self._dispatch is None
            and self._length(self._reading) is not None  # else `is_last` reads ahead
            and self._reading.batch_seed(0) is None
            and isinstance(self._iterator, DataLoaderIterator)
        )
        self._counts_itself = not is_direct
        return self._direct() if is_direct else self._one_by_one()

    def _states(self) -> tuple[dict[str, Any] | None, list[Any]]:
        """What the pass draws from: the host's generators, if its order is drawn as plain torch does, and its own."""
        return get_host_rng_state() if self._is_plain else None, [one.get_state() for one in self._generators]

    def _note_order(self) -> None:
        """Note from what a loader without workers draws its order, at the first batch: others may have begun since."""
        if self.start.generators is None and not getattr(self._reading.own, "num_workers", 0):
            self.drawn_from = self._states()

    def _direct(self) -> Iterator[Any]:
        """The loader's own iterator, which counts by itself."""
        active = self._active
        self._note_order()
        try:
            for batch in self._iterator:
                if active.newest is not self:
                    self._compares()
                    active.yields(self)
                yield batch
            self._compares()
            self.is_finished = True
        except Exception as error:
            add_remedy(error)
            raise
        finally:
            self._end()

    def _one_by_one(self) -> Iterator[Any]:
        transfer, active = self._transfer, self._active
        # Workers have the next batch ready; here it would delay this one.
        looks_ahead = transfer is not None and transfer.overlaps and getattr(self._reading.own, "num_workers", 0) > 0
        self._note_order()
        try:
            while self._read():
                batch, self._real, self._is_last = self._ahead.popleft()
                if looks_ahead:
                    self._read()
                self._taken += 1
                if active.newest is not self:
                    self._compares()
                    active.yields(self)
                yield batch if transfer is None else transfer.finish(batch)
            self._compares()
            self.is_finished = True
        finally:
            self._end()

    def _compares(self) -> None:
        """Compare what was read with the other processes, once: at the first batch, or where there is none."""
        if self._compare is not None:
            compare, self._compare = self._compare, None
            compare(self._reading.facts(), self.start.epoch, self.start.offset)

    def _end(self) -> None:
        self.is_left = not self.is_finished
        self._taken, self._counts_itself = self.taken, True
        loader, self._iterator, self.loader = self.loader, None, None
        self._ahead.clear()
        self._active.ends(self)
        assert loader is not None
        progress, offset = loader._progress, self.start.offset
        if self.is_finished:
            reads = self._reading if self._dispatch is None else self._dispatch
            # The first process has a batch where any has one.
            is_again = progress.had_batches and not offset and (self._share.even or self._share.shard == 0)
            check_length(self._reading.own, reads.steps, offset, self._taken, is_again)
        progress.had_batches |= self._taken > 0

    def _read(self) -> bool:
        """Whether there is a next batch; it is read, and its copy to the device begun."""
        if self._ahead or self._has_ended:
            return bool(self._ahead)
        seed = None if self._dispatch is not None else self._reading.batch_seed(self._number)
        try:
            with nullcontext() if seed is None else seeded(seed):
                batch = next(self._iterator)
        except StopIteration:
            self._has_ended = True
            return False
        except Exception as error:
            add_remedy(error)
            raise
        is_last: bool | None = None
        if self._dispatch is not None:
            batch, real, is_last = batch
        elif self._reading.marks:
            batch, real = batch
        else:
            real = self._reading.real(self._number)
        self._number += 1
        self._ahead.append((batch if self._transfer is None else self._transfer.start(batch), real, is_last))
        return True

    @property
    def taken(self) -> int:
        """How many batches were handed out in this pass."""
        return self._taken if self._counts_itself else num_yielded(self._iterator) - self._yielded_before

    def real(self) -> Real | None:
        """Like :attr:`PreparedLoader.real_samples`, for this pass."""
        taken = self.taken
        return self._real if self._counts_itself or not taken else self._reading.real(taken - 1)

    def absent(self) -> tuple[int, ...]:
        """The parts of the data that have no batch next to the newest batch of this part, if batches are uneven."""
        real = None if self._share.even else self.real()
        return () if real is None else tuple(part for part, count in enumerate(real) if count == 0)

    def is_last(self) -> bool:
        """Whether no batch comes after the newest."""
        taken = self.taken
        if self.is_finished or not taken or self._is_last is not None:
            return self.is_finished or bool(taken and self._is_last)
        length = self._length(self._reading)
        return not self._read() if length is None else taken >= length

    def num_left(self) -> int | None:
        """The number of batches after the newest; ``None`` where the length of the data is unknown."""
        length = self._length(self._reading if self._dispatch is None else self._dispatch)
        return None if length is None else max(length - self.taken, 0)

    def _length(self, reading: Reading | Dispatch) -> int | None:
        """How many batches ``reading`` has in this pass; ``None`` if that is not certain."""
        try:
            return reading.steps(self.start.offset) if self._reading.knows_length else None
        except TypeError:
            return None

    def inner_state(self) -> dict[str, Any] | None:
        """The state of a loader that finds its position by itself, where nothing was read ahead."""
        return None if self._ahead or self._dispatch is not None or self.is_finished else self._reading.inner_state()
