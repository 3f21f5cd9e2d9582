"""Random numbers of a pass over a loader: agreed by all processes, and the same after a resume.

A shuffling loader of plain torch draws two numbers from torch's generator at each pass: the base seed of its workers,
and the seed of its order. :class:`PassSeeds` draws them from a copy of that generator, so that the order of pass ``n``
depends on the state of the generator at prepare, and on ``n``. It is the order of plain torch in one process, as long
as nothing but the loader draws from torch's generator.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from ..random import get_host_rng_state, set_host_rng_state


def mix(*numbers: int) -> int:
    """One seed, of 63 bits, from several numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def draw_seed(generator: Generator | None) -> int:
    """The number that a ``DataLoader`` draws from ``generator``, torch's own for ``None``, where it needs a seed."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


class PassSeeds:
    """The seeds of each pass over a loader.

    Args:
        state: The state of the generator that they are drawn from.
    """

    def __init__(self, state: Tensor) -> None:
        self.state = state

    @classmethod
    def from_seed(cls, seed: int) -> PassSeeds:
        """The numbers that plain torch draws after ``torch.manual_seed(seed)``."""
        return cls(Generator().manual_seed(seed).get_state())

    def of(self, epoch: int) -> tuple[int, int]:
        """The base seed of the workers and the seed of the order in pass ``epoch``, from 0."""
        generator = Generator()
        generator.set_state(self.state)
        # A loader draws two numbers in each pass.
        drawn = torch.empty(2 * (epoch + 1), dtype=torch.int64).random_(generator=generator)
        return int(drawn[-2]), int(drawn[-1])


class SeededIndex:
    """Index of what a worker fetches next, which seeds the worker's generators when it arrives there.

    So the numbers that are drawn for a batch depend on the batch alone, not on which worker made which batches before:
    a resumed run draws them again, with any number of workers.
    """

    __slots__ = ("index", "seed")

    def __init__(self, index: Any, seed: int) -> None:
        self.index, self.seed = index, seed

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in the worker right before it fetches, it becomes the plain index.
        return _arrive, (self.index, self.seed)


def _arrive(index: Any, seed: int) -> Any:
    seed_host(seed)
    return index


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The host's global generators start from ``seed`` within, and are as before afterwards."""
    apart = _spare.pop() if _spare else Apart()
    try:
        with apart:
            seed_host(seed)
            yield
    finally:
        _spare.append(apart)


@contextmanager
def replayed(
    state: dict[str, Any] | None, own: Sequence[Any] = (), states: Sequence[Any] | None = None
) -> Iterator[None]:
    """The host's global generators start from ``state`` within, and ``own`` from ``states``; then all are as before.

    Those whose state is ``None`` are left alone.
    """
    before = None if states is None else [generator.get_state() for generator in own]
    if state is not None:  # NumPy's is absent if it was not imported there: it goes on from the process's own
        state = {**get_host_rng_state(), **state}
    with nullcontext() if state is None else Apart():
        if state is not None:
            set_host_rng_state(state)
        if states is not None:
            set_states(own, states)
        try:
            yield
        finally:
            if before is not None:
                set_states(own, before)


def set_states(generators: Sequence[Any], states: Sequence[Any]) -> None:
    """Set the state of each of ``generators``."""
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


class Apart:
    """States of the host's global generators, Python's, torch's and NumPy's, for what runs within.

    Outside they are as before. A loader without workers enters and leaves it at each batch. What a checkpoint holds is
    in :mod:`core.random`, and takes several times as long.

    Args:
        goes_on: Whether each time within goes on where the last one ended.
    """

    def __init__(self, goes_on: bool = False) -> None:
        self._goes_on = goes_on
        self._within: tuple[Any, Tensor] | None = None
        self._numpy: _NumPyGenerator | None = None
        self._numpy_outside: _NumPyGenerator | None = None

    def __enter__(self) -> None:
        self._outside = random.getstate(), torch.default_generator.get_state()
        if self._within is not None:
            _set_python_and_torch(*self._within)
        if "numpy" in sys.modules:
            self._numpy_outside = _NumPyGenerator.attached()
            self._numpy_outside.keep()
            if self._numpy is None:
                self._numpy = _NumPyGenerator(sys.modules["numpy"].random.MT19937(0))
            self._numpy.attach()

    def __exit__(self, *error: object) -> None:
        if self._goes_on:
            self._within = random.getstate(), torch.default_generator.get_state()
        _set_python_and_torch(*self._outside)
        if self._numpy_outside is not None and self._numpy is not None:
            if self._goes_on:
                self._numpy.keep()
            self._numpy_outside.attach()


class _NumPyGenerator:
    """A generator that NumPy's global functions draw from for a time.

    An exchange takes a tenth of the time of ``get_state`` and ``set_state``. But NumPy draws normal numbers in pairs,
    and forgets the second one of a pair in an exchange; where there may be one, its whole state is kept.
    """

    newest: ClassVar[_NumPyGenerator | None] = None

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._memory: bytes | None = None
        self._whole: dict[str, Any] | None = None

    @classmethod
    def attached(cls) -> _NumPyGenerator:
        """The one that NumPy draws from now."""
        generator, newest = sys.modules["numpy"].random.get_bit_generator(), cls.newest
        return newest if newest is not None and newest._generator is generator else cls(generator)

    def keep(self) -> None:
        """Keep what an exchange would forget."""
        generator = self._generator
        # NumPy's struct for a Mersenne Twister: 624 numbers of 32 bits, and a position among them. If it is the same as
        # before, nothing was drawn; to read the whole state takes as long as all else that is done for a batch.
        is_known = type(generator).__name__ == "MT19937"
        memory = ctypes.string_at(generator.ctypes.state_address, 4 * 625) if is_known else None
        if memory is None or memory != self._memory or self._whole is not None:
            state = sys.modules["numpy"].random.get_state(legacy=False)
            self._memory, self._whole = memory, state if state["has_gauss"] else None

    def attach(self) -> None:
        """Let NumPy draw from it."""
        numpy_random = sys.modules["numpy"].random
        numpy_random.set_bit_generator(self._generator)
        if self._whole is not None:
            numpy_random.set_state(self._whole)
        _NumPyGenerator.newest = self


_spare: list[Apart] = []
"""Kept for the next batch: each new MT19937 asks the system for a seed first, whatever seed it is given."""


def _set_python_and_torch(python: Any, host: Tensor) -> None:
    random.setstate(python)
    torch.default_generator.set_state(host)


def seed_host(seed: int) -> None:
    """Seed the host's global generators."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)  # the largest that it takes, but for arrays, which are slow
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the devices' generators too
