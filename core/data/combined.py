"""Several loaders as one: their batches together, or one loader after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from torch.utils.data import DataLoader

from ..errors import CheckpointError, ConfigurationError, WrongTypeError, quoted
from .loader import PreparedLoader
from .shards import read_end

Mode = Literal["min_size", "max_size_cycle", "max_size", "sequential"]

MODES: tuple[Mode, ...] = get_args(Mode)

CYCLE_STRIDE = 1 << 20
"""The difference between the numbers of two passes over a loader in one epoch, so that each has its own order."""


class CombinedLoader:
    """Several loaders, in a dict, a list or a tuple, as one.

    ::

        loader = CombinedLoader({"labelled": labelled, "unlabelled": unlabelled}, mode="max_size_cycle")
        for batch, batch_idx, dataloader_idx in loader:
            batch["labelled"], batch["unlabelled"]

    Iterating gives each batch with its number, and with that of its loader where one follows the other, otherwise 0. A
    Trainer takes it in the place of a loader.

    Args:
        iterables: The loaders. A dict, list or tuple within it that contains a ``DataLoader`` contains loaders too; any
            other object is one loader.
        mode: When it ends, and what a batch is:

            * ``"min_size"``: with the shortest loader; a batch has one of each, in the structure of ``iterables``.
            * ``"max_size_cycle"``: with the longest; the others begin again.
            * ``"max_size"``: with the longest; the others give ``None``.
            * ``"sequential"``: with the last; a batch is one of one loader.

    Raises:
        ConfigurationError: The mode is unknown, or there is no loader.
        WrongTypeError: A loader cannot be iterated over.
    """

    def __init__(self, iterables: Any, mode: Mode = "min_size") -> None:
        if mode not in MODES:
            raise ConfigurationError(f"mode={mode!r}: unknown. Valid: {quoted(MODES)}.")
        self.iterables, self.mode = iterables, mode
        self.flattened: list[Any] = list(_leaves(iterables, is_top=True))
        """The loaders, in the order of ``iterables``."""
        if not self.flattened:
            raise ConfigurationError(f"CombinedLoader: {iterables!r} has no loader. Give it at least one.")
        for loader in self.flattened:
            if not hasattr(loader, "__iter__"):
                raise WrongTypeError(
                    f"CombinedLoader: {type(loader).__name__} is not a loader. Give it DataLoaders or other iterables "
                    "of batches."
                )

    def __iter__(self) -> Iterator[Any]:
        if self.mode == "sequential":
            for dataloader_idx, loader in enumerate(self.flattened):
                for batch_idx, batch in enumerate(loader):
                    yield batch, batch_idx, dataloader_idx
            return
        parts = [_Part(loader) for loader in self.flattened]
        for batch_idx, batch in enumerate(_combine(parts, self.mode, self.iterables)):
            yield batch, batch_idx, 0

    def __len__(self) -> int:
        return int(_total([len(loader) for loader in self.flattened], self.mode))


class _Part:
    """One of the loaders of a pass, and how far it is."""

    def __init__(self, loader: Any, cycle: int = 0, has_ended: bool = False) -> None:
        self.loader, self.cycle, self.has_ended = loader, cycle, has_ended
        self._iterator: Iterator[Any] | None = None

    def again(self) -> None:
        self.cycle, self._iterator = self.cycle + 1, None

    def take(self) -> tuple[Any, bool]:
        """The next batch, and whether there was one."""
        if (
            self._iterator is None
        ):  # not before: nothing else may draw random numbers before this loader's order is drawn
            self._iterator = iter(self.loader)
        try:
            return next(self._iterator), True
        except StopIteration:
            return None, False


class _PreparedPart(_Part):
    """One that is prepared; at most ``limit`` batches of each pass are taken."""

    loader: PreparedLoader

    def __init__(self, loader: PreparedLoader, epoch: int, limit: float, cycle: int, has_ended: bool) -> None:
        super().__init__(loader, cycle, has_ended)
        self._epoch, self._limit = epoch, limit
        loader.set_epoch(epoch + cycle * CYCLE_STRIDE)

    def again(self) -> None:
        self.loader.set_epoch(self._epoch + (self.cycle + 1) * CYCLE_STRIDE)
        super().again()

    def take(self) -> tuple[Any, bool]:
        if self.loader.batches_taken >= self._limit:
            return None, False
        return super().take()

    @property
    def left(self) -> float:
        if self.has_ended or self.cycle:
            return 0
        try:
            left: float = self.loader.batches_left
        except TypeError:  # a stream
            left = math.inf
        return min(left, self._limit - self.loader.batches_taken)


def _combine(parts: Sequence[_Part], mode: Mode, iterables: Any) -> Iterator[Any]:
    """The batches of ``parts``, each in the structure of ``iterables``, unless they come one after another."""
    if mode == "sequential":
        for part in parts:
            while not part.has_ended:
                batch, found = part.take()
                if found:
                    yield batch
                else:
                    part.has_ended = True
        return
    while True:
        taken = [(None, False) if part.has_ended else part.take() for part in parts]
        is_over = [not found and not part.cycle for part, (_, found) in zip(parts, taken, strict=True)]
        if mode == "min_size" and any(is_over):
            return
        if all(over or part.cycle for over, part in zip(is_over, parts, strict=True)):
            return
        for number, (part, (_, found)) in enumerate(zip(parts, taken, strict=True)):
            if found:
                continue
            if mode == "max_size":
                part.has_ended = True
                continue
            part.again()
            taken[number] = part.take()
        yield _filled(iterables, (batch for batch, _ in taken))


def _filled(iterables: Any, batches: Iterator[Any]) -> Any:
    """``batches`` in the structure of ``iterables``."""
    return _map(lambda _: next(batches), iterables, is_top=True)


class PreparedCombined:
    """A :class:`CombinedLoader` of prepared loaders: this process's share, at a known position.

    Args:
        combined: The user's own.
        prepare: Prepares one loader.
    """

    def __init__(self, combined: CombinedLoader, prepare: Callable[[Any], PreparedLoader]) -> None:
        self.mode = combined.mode
        self.iterables = _map(prepare, combined.iterables, is_top=True)
        """The prepared loaders, in the user's structure."""
        self.flattened: list[PreparedLoader] = list(_leaves(self.iterables, is_top=True))
        self.limits: list[float] = [math.inf] * len(self.flattened)
        """The largest number of batches of a pass over each loader."""
        self._parts: list[_PreparedPart] = []
        self._epoch = self._taken = 0
        self._pending: dict[str, Any] | None = None

    @property
    def epoch(self) -> int:
        """The number of the next pass, from 0."""
        return max(loader.epoch % CYCLE_STRIDE for loader in self.flattened)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass number ``epoch``; a position that was loaded within that pass is kept."""
        self._epoch = epoch
        if self._pending is not None and self._pending["epoch"] != epoch:
            self._pending = None
        self._set_up()

    def _set_up(self) -> None:
        pending = self._pending
        cycles = [0] * len(self.flattened) if pending is None else pending["cycles"]
        ended = [False] * len(self.flattened) if pending is None else pending["ended"]
        self._taken = 0 if pending is None else pending["taken"]
        self._parts = [
            _PreparedPart(loader, self._epoch, limit, cycle, has_ended)
            for loader, limit, cycle, has_ended in zip(self.flattened, self.limits, cycles, ended, strict=True)
        ]

    def __iter__(self) -> Iterator[Any]:
        self._set_up()
        self._pending = None
        return self._counted(_combine(self._parts, self.mode, self.iterables))

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._taken += 1
            yield batch

    def __len__(self) -> int:
        limited = [min(len(loader), limit) for loader, limit in zip(self.flattened, self.limits, strict=True)]
        return int(_total(limited, self.mode))

    @property
    def batches_left(self) -> int:
        """The number of batches of the next pass that are left.

        Raises:
            TypeError: It is not known.
        """
        left = _total([part.left for part in self._parts], self.mode)
        if math.isinf(left):
            raise TypeError("a loader has no length")
        return int(left)

    @property
    def batches_taken(self) -> int:
        """How many batches of the newest pass have been handed out or skipped."""
        return self._taken

    def leave_ended_pass(self) -> None:
        """As :meth:`core.data.PreparedLoader.leave_ended_pass`: at its end, some loaders may have further batches."""
        try:
            is_at_end = self._pending is not None and self.batches_left == 0
        except TypeError:
            return
        if is_at_end:
            list(read_end(iter(self), self._taken))

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the newest batch is the last of its pass."""
        lasts = [
            part.has_ended or bool(part.cycle) or part.loader.end_of_dataloader or part.loader.batches_taken >= limit
            for part, limit in zip(self._parts, self.limits, strict=True)
        ]
        return self._taken > 0 and (any(lasts) if self.mode == "min_size" else all(lasts))

    def state_dict(self) -> dict[str, Any]:
        """The position in each loader."""
        return {
            "epoch": self._epoch,
            "taken": self._taken,
            "cycles": [part.cycle for part in self._parts],
            "ended": [part.has_ended for part in self._parts],
            "loaders": [loader.state_dict() for loader in self.flattened],
        }

    def load_state_dict(self, state: Mapping[str, Any], reshard: bool = False) -> None:
        """Continue where :meth:`state_dict` was called; as :meth:`core.data.PreparedLoader.load_state_dict`."""
        if "cycles" not in state or len(state["loaders"]) != len(self.flattened):
            raise CheckpointError(
                f"state of a CombinedLoader: is not one of {len(self.flattened)} loader(s). Give it loaders like those "
                "it was taken from."
            )
        for loader, own in zip(self.flattened, state["loaders"], strict=True):
            loader.load_state_dict(own, reshard)
        is_inside = bool(state["taken"])
        if is_inside and all(loader.is_evaluation for loader in self.flattened):  # which starts from the beginning
            self._pending, self._epoch = None, state["epoch"] + 1
        else:
            self._pending = {name: state[name] for name in ("epoch", "taken", "cycles", "ended")} if is_inside else None
            self._epoch = state["epoch"]
        self._set_up()  # what was taken before, as in the sanity check, is no part of the position


def step_back(loader: Any, state: dict[str, Any], taken: int) -> None:
    """Change ``state`` of a prepared loader: the pass goes on after its first ``taken`` batches, not after later ones.

    Args:
        loader: The loader, or several as one.
        state: Its state in any process; of several loaders, at most one batch later.
        taken: The number of batches.
    """
    if not isinstance(loader, PreparedCombined):
        ahead = state["batches"] - taken
        if ahead > 0:
            state |= {"batches": taken, "offset": state["offset"] - ahead * state["units"], "loader": None}
    elif state["taken"] > taken:
        state["taken"] = taken
        parts = zip(loader.flattened, state["loaders"], state["ended"], strict=True)
        read = [(part, own) for part, own, has_ended in parts if not has_ended]
        for part, own in read[:1] if loader.mode == "sequential" else read:
            step_back(part, own, own["batches"] - 1)


def is_collection(loader: Any) -> bool:
    """Whether ``loader`` is a dict of loaders, or a list or tuple with a ``DataLoader`` somewhere in it."""
    return isinstance(loader, Mapping) or (isinstance(loader, list | tuple) and _has_loader(loader))


def loaders_in(loader: Any) -> list[Any]:
    """The loaders in what a Trainer takes in the place of a loader: itself, unless it is several."""
    return loader.flattened if isinstance(loader, CombinedLoader) else list(_leaves(loader))


def _has_loader(part: Any) -> bool:
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, list | tuple):
        return any(_has_loader(inner) for inner in part)
    return isinstance(part, DataLoader | CombinedLoader | PreparedCombined)


def _leaves(iterables: Any, is_top: bool = False) -> Iterator[Any]:
    if isinstance(iterables, Mapping):
        for part in iterables.values():
            yield from _leaves(part)
    elif isinstance(iterables, list | tuple) and (is_top or is_collection(iterables)):
        for part in iterables:
            yield from _leaves(part)
    else:
        yield iterables


def _map(function: Callable[[Any], Any], iterables: Any, is_top: bool = False) -> Any:
    if isinstance(iterables, Mapping):
        return {name: _map(function, part) for name, part in iterables.items()}
    if isinstance(iterables, list | tuple) and (is_top or is_collection(iterables)):
        return type(iterables)([_map(function, part) for part in iterables])
    return function(iterables)


def _total(lengths: Sequence[float], mode: Mode) -> float:
    return min(lengths) if mode == "min_size" else sum(lengths) if mode == "sequential" else max(lengths)
