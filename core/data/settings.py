"""The settings of how a run reads its data."""

from __future__ import annotations

import attrs

from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import suggest_arguments_of

__all__ = ["DataSettings"]


@suggest_arguments_of
@attrs.frozen(kw_only=True)
class DataSettings:
    """How loaders are sharded, seeded and read; under Accelerate's names.

    Raises:
        WrongTypeError: A value has the wrong type.
        ConfigurationError: ``data_seed`` is negative.
    """

    split_batches: bool = False
    """Whether the loader's batch size is that of the global batch, which the processes divide among them. Otherwise
    each process takes batches of that size."""
    dispatch_batches: bool | None = None
    """Whether process 0 alone reads the data and sends the other processes their part. ``None`` means no in
    the Trainer, where each process reads the data and takes its part. In a Runtime it means yes for iterable data that
    is the same in all processes: the code of its class asks for no rank, and what it holds is equal."""
    even_batches: bool = True
    """Whether every process makes the same number of steps: the last global batch is divided evenly, and padded where
    the number of processes does not divide it, with the first items of the pass (with ``dispatch_batches``, with its
    own). Otherwise nothing is padded, and some processes have fewer batches."""
    use_seedable_sampler: bool = False
    """Whether one process, too, takes the order of a shuffling loader from a seed and the epoch alone. Several
    processes always do. See :mod:`core.data.seeds`."""
    data_seed: int | None = None
    """The seed of that order; implies ``use_seedable_sampler``. ``None`` takes it from torch's generator at prepare."""
    use_stateful_dataloader: bool = False
    """Whether loaders of iterable data sets are read through torchdata's ``StatefulDataLoader``, so that a resumed run
    restores a data set with a ``state_dict`` instead of reading again what it had read."""
    non_blocking: bool = True
    """Whether batches are copied to the device without waiting for the copy, on a separate stream where the device
    has streams. From pinned memory (``DataLoader(pin_memory=True)``) the copy then overlaps with the step."""

    def __attrs_post_init__(self) -> None:
        for name in (
            "split_batches",
            "even_batches",
            "use_seedable_sampler",
            "use_stateful_dataloader",
            "non_blocking",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise WrongTypeError(f"{name}={value!r}: must be True or False, not {type(value).__name__}.")
        if not (self.dispatch_batches is None or isinstance(self.dispatch_batches, bool)):
            raise WrongTypeError(f"dispatch_batches={self.dispatch_batches!r}: must be True, False or None.")
        seed = self.data_seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise WrongTypeError(f"data_seed={seed!r}: must be an integer ≥ 0 or None, not {type(seed).__name__}.")
        if seed is not None and seed < 0:
            raise ConfigurationError(f"data_seed={seed}: must be an integer ≥ 0 or None.")

    @property
    def is_seeded(self) -> bool:
        """Whether the order comes from a seed and the epoch, whatever the number of processes."""
        return self.use_seedable_sampler or self.data_seed is not None
