"""Random numbers of a pass over a loader: agreed by all processes, and the same after a resume.

A shuffling loader of plain torch draws two numbers from torch's generator at each pass: the base seed of its workers,
and the seed of its order. :class:`PassSeeds` draws them from a copy of that generator, so that the order of pass ``n``
depends on the state of the generator at prepare, and on ``n``. It is the order of plain torch in one process, as long
as nothing but the loader draws from torch's generator.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor

from ..random import set_host_rng_state


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
    _seed_host(seed)
    return index


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The host's global generators start from ``seed`` within, and are as before afterwards."""
    with _kept_host_state():
        _seed_host(seed)
        yield


@contextmanager
def replayed(
    state: dict[str, Any] | None, own: Sequence[Any] = (), states: Sequence[Any] | None = None
) -> Iterator[None]:
    """The host's global generators start from ``state`` within, and ``own`` from ``states``; then all are as before.

    Those whose state is ``None`` are left alone.
    """
    before = None if states is None else [generator.get_state() for generator in own]
    with nullcontext() if state is None else _kept_host_state():
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


@contextmanager
def _kept_host_state() -> Iterator[None]:
    state = host_state()
    try:
        yield
    finally:
        set_host_state(state)


def host_state() -> tuple[Any, Any, Any]:
    """The states of the generators of Python, torch and, if it is imported, NumPy, as these give them.

    A loader without workers takes and sets them at each batch. What a checkpoint holds is in :mod:`core.random`, and
    takes twice as long.
    """
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    return random.getstate(), torch.default_generator.get_state(), numpy


def set_host_state(state: tuple[Any, Any, Any]) -> None:
    """Restore the generators to ``state``, which :func:`host_state` returned."""
    python, host, numpy = state
    random.setstate(python)
    torch.default_generator.set_state(host)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)


def _seed_host(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        # NumPy takes 32-bit integers.
        sys.modules["numpy"].random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the devices' generators too
