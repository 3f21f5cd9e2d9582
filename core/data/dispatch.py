"""One process reads, and sends the others their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count, islice
from typing import Any

from ..checkpoints.agreement import decide_on_rank_zero
from ..errors import ConfigurationError, CoreError
from .batches import batch_size_of, common_size_of, concatenate, slice_batch
from .reading import Reading
from .seeds import seeded
from .shards import Real, Share


class Dispatch:
    """How one process reads a loader for all processes.

    Args:
        broadcast: Sends an object of process 0 to all, and returns it.
        share: Which part of each global batch is this process's.
        is_reader: Whether this process reads.
        units: How far a global batch moves in the data.
        batch_size: Items in a batch of the loader; ``None`` where batches are passed on whole.
        drop_last: Whether an incomplete batch is left out.
        steps: How many global batches a pass has from an offset on.
    """

    def __init__(
        self,
        broadcast: Callable[[Any], Any],
        share: Share,
        is_reader: bool,
        units: int,
        batch_size: int | None,
        drop_last: bool,
        steps: Callable[[int], int],
    ) -> None:
        self.broadcast, self.share, self.is_reader, self.units = broadcast, share, is_reader, units
        self.batch_size, self.drop_last, self.steps = batch_size, drop_last, steps

    def parts(self, reading: Reading, batches: Iterator[Any] | None) -> Iterator[tuple[Any, Real | None, bool]]:
        """This process's part of each global batch, what of that is not padding (or ``None``), whether it is the last.

        Every process has to ask for as many parts as the others.

        Args:
            reading: What has begun ``batches``.
            batches: What is read, in one process; ``None`` in the others.

        Raises:
            CoreError: The reading process could not read.
        """
        messages = iter(()) if batches is None else self._messages(_read_ahead(reading, batches))
        while True:
            # A user's data set may raise anything.
            parts, real, is_last = decide_on_rank_zero(
                lambda: next(messages), batches is not None, self.broadcast, _failed, Exception
            )
            if parts is not None and parts[self.share.shard] is not None:
                yield parts[self.share.shard][0], real, is_last
            if is_last:
                return

    def _messages(self, batches: Iterator[Any]) -> Iterator[tuple[list[Any] | None, Real | None, bool]]:
        """The parts of each global batch, with what is not padding, and whether it is the last."""
        rounds = self._rounds(batches)
        current = next(rounds, (None, None))
        while (following := next(rounds, None)) is not None:
            yield *current, False
            current = following
        yield *current, True

    def _rounds(self, batches: Iterator[Any]) -> Iterator[tuple[list[Any], Real | None]]:
        size = 1 if self.share.split else self.share.shards
        while current := list(islice(batches, size)):
            parts, real = self._divide(current)
            if parts is not None:
                yield parts, real
            if len(current) < size:
                return

    def _divide(self, batches: list[Any]) -> tuple[list[Any] | None, Real | None]:
        share, shards, batch_size = self.share, self.share.shards, self.batch_size
        if batch_size is None and not share.split:
            return _whole(batches, [batch_size_of(batch) for batch in batches], share)
        sizes = [common_size_of(batch) for batch in batches]
        total = sum(size or 0 for size in sizes)
        if None in sizes and not share.split:  # such as sequences of several lengths, joined to one tensor
            parts, real = _whole(batches, [None] * len(batches), share)
            return parts, real or (None,) * shards
        if None in sizes or (batch_size is None and not share.even and total < shards):
            raise ConfigurationError(
                f"dispatch_batches: {shards} processes cannot divide a batch of type {type(batches[0]).__name__} with "
                f"{total} item(s). Yield tensors or structures of tensors, or set dispatch_batches=False."
            )
        is_complete = total == (share.global_size(batch_size) if batch_size is not None else total)
        if is_complete and not share.split:
            return [(batch,) for batch in batches], None
        kept = total if is_complete or batch_size is None else share.kept(total, batch_size, self.drop_last)
        if not kept:
            return None, None
        counts = share.counts(kept, batch_size if batch_size is not None else -(-kept // shards))
        joined = slice_batch(concatenate(batches), 0, kept)
        missing = sum(counts) - kept
        if missing:
            # With these items again: a resumed pass has not read the pass's first ones, and is to be filled with the
            # same.
            whole, rest = divmod(missing, kept)
            joined = concatenate([*[joined] * (1 + whole), *([slice_batch(joined, 0, rest)] if rest else [])])
        starts = [sum(counts[:shard]) for shard in range(shards)]
        parts = [
            (slice_batch(joined, start, start + count),) if count else None
            for start, count in zip(starts, counts, strict=True)
        ]
        is_full = batch_size is not None and is_complete
        return parts, None if is_full or (batch_size is None and not missing) else share.real(counts, kept)


def _read_ahead(reading: Reading, batches: Iterator[Any]) -> Iterator[Any]:
    """``batches``, with the numbers that are drawn for each depending on it alone: it is read before its step."""
    for number in count():
        seed = reading.batch_seed(number)
        try:
            with nullcontext() if seed is None else seeded(seed):
                batch = next(batches)
        except StopIteration:
            return
        yield batch[0] if reading.marks else batch


def _failed(error: Exception) -> CoreError:
    return CoreError(f"dispatch_batches: the process that reads the data failed: {type(error).__name__}: {error}")


def _whole(batches: list[Any], sizes: list[int | None], share: Share) -> tuple[list[Any] | None, Real | None]:
    """Batches that are passed on as they are."""
    missing = share.shards - len(batches)
    parts: list[Any] = [(batch,) for batch in batches]
    parts += [(batches[number % len(batches)],) if share.even else None for number in range(missing)]
    real = (*sizes, *(0,) * missing)
    return parts, None if not missing and len(set(sizes)) == 1 else real
