"""The settings of how a run reads its data."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import attrs
import torch
from torch import Generator
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import check_count, check_flags, suggest_arguments_of
from ..strategies.base import Strategy
from .active_passes import ActivePasses
from .dispatch import Dispatch
from .loader import PreparedLoader
from .loader_structure import check_sharded, generators_of
from .rank_comparison import comparison, data_set_facts, is_same_everywhere, refuse_other_data
from .reading import MapReading, StreamReading, make_reading
from .seeds import PassSeeds, draw_seed
from .shards import Share, index_source
from .transfer import Transfer


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
    is the same in all processes: the code of its class asks for no rank, and what it holds is equal. Process 0 then
    reads one global batch ahead of the loop, to know the last one: set ``False`` for data that acts with the weights
    of the newest step, such as a replay buffer."""
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
        others = ("dispatch_batches", "data_seed")
        check_flags(**{name: value for name, value in attrs.asdict(self).items() if name not in others})
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


HOST = torch.device("cpu")


def prepare_loader(
    loader: Any,
    strategy: Strategy,
    *,
    evaluation: bool = False,
    sharded: bool = False,
    settings: DataSettings | None = None,
    device_placement: bool = True,
    active: ActivePasses | None = None,
    dispatches_streams: bool = False,
) -> PreparedLoader:
    """A loader of this process's share of the batches of ``loader``, each on this process's device.

    With several processes all of them have to call it, as process 0 tells the others how orders are drawn.

    Args:
        loader: The user's own; it is left as it was. A DataLoader, or on one process any iterable of batches. One that
            was prepared is returned as it is, unless by another front end.
        strategy: Says which share is this process's.
        evaluation: Whether it is read for evaluation: ``drop_last`` drops what one process would drop, and a pass that
            was left by ``break`` is not continued after a resume.
        sharded: Whether the user has already sharded the data among the processes. Where torch's
            ``DistributedSampler`` does so, Hugging Face's ``split_dataset_by_node`` of a streaming data set or
            WebDataset's ``split_by_node``, this is noticed.
        settings: How loaders are sharded, seeded and read.
        device_placement: Whether batches are copied to this process's device.
        active: Where the loader's passes say that they yield a batch; a new registry by default.
        dispatches_streams: Whether ``dispatch_batches=None`` means yes for iterable data that is the same everywhere.

    Raises:
        WrongTypeError: It cannot be sharded.
        ConfigurationError: It is sharded for other processes than these, or the settings do not fit it.
    """
    if isinstance(loader, PreparedLoader):
        if active is None or loader._active is active:
            return loader
        loader = loader._reading.own  # another front end has prepared it, and that one is told of its passes
    settings = DataSettings() if settings is None else settings
    shards, shard = strategy.data_shards, strategy.data_shard
    if settings.use_stateful_dataloader:
        loader = _stateful(loader)
    # Batches come from the host: where that is where the work is done, there is nothing to move.
    device = None if strategy.root_device.type == HOST.type or not device_placement else strategy.root_device
    transfer = None if device is None else Transfer(device, settings.non_blocking)
    is_shared = shards > 1
    if is_shared and (sharded or check_sharded(loader, shards, shard)):
        return PreparedLoader(
            make_reading(loader, Share(), shard, True), Share(), None, transfer, None, evaluation, active
        )
    if is_shared and not isinstance(loader, DataLoader):
        raise WrongTypeError(
            f"dataloaders: {type(loader).__name__} cannot be sharded among {shards} processes. Pass a "
            "torch DataLoader, or set sharded=True if it already yields only this process's part."
        )
    if is_shared and dispatches_streams and settings.dispatch_batches is None and _is_stream(loader):
        settings = attrs.evolve(settings, dispatch_batches=is_same_everywhere(loader, strategy))
    share = Share(shards, shard, settings.even_batches, settings.split_batches, evaluation)
    # Processes that work on one batch together, as in tensor parallelism, read the same without dividing it.
    is_alike = strategy.world_size > 1 and isinstance(loader, DataLoader)
    compare = comparison(strategy, loader) if is_alike else None
    seeds = _agreed_seeds(loader, strategy, settings, is_alike)
    if is_shared and settings.dispatch_batches:
        return _dispatching(loader, strategy, share, seeds, transfer, active)
    reading = make_reading(loader, share, shard, is_alike, settings.is_seeded or is_alike)
    if isinstance(reading, MapReading):
        reading.sampler.reseed = settings.is_seeded
    return PreparedLoader(reading, share, seeds, transfer, None, evaluation, active, compare)


def _is_stream(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def _agreed_seeds(loader: Any, strategy: Strategy, settings: DataSettings, is_alike: bool) -> PassSeeds | None:
    """What orders are drawn from: process 0's, which its generators are also made equal to."""
    generators = generators_of(loader)
    if not (is_alike or settings.is_seeded):
        return None
    if settings.data_seed is not None:
        seeds = PassSeeds.from_seed(settings.data_seed)
    elif settings.is_seeded and (own := _own_generator(loader)) is not None:
        seeds = PassSeeds.from_seed(own.initial_seed())
    else:
        seeds = PassSeeds(torch.get_rng_state())
        if _draws_order(loader):
            draw_seed(None)  # so that the next loader's orders are others
    if is_alike:
        states = [generator.get_state() for generator in generators]
        facts = [] if settings.dispatch_batches else data_set_facts(loader)
        seeds.state, states, first = strategy.broadcast((seeds.state, states, facts))
        refuse_other_data(loader, facts, first, strategy.global_rank, strategy.data_shards)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
    return seeds


def _draws_order(loader: Any) -> bool:
    """Whether the order of ``loader`` may be drawn from torch's own generator."""
    if not isinstance(loader, DataLoader) or _is_stream(loader):
        return True
    source = index_source(loader)[0]
    return type(source) is not SequentialSampler and getattr(source, "generator", None) is None


def _own_generator(loader: Any) -> Generator | None:
    if not isinstance(loader, DataLoader):
        return None
    found = getattr(index_source(loader)[0], "generator", None) or loader.generator
    return found if isinstance(found, Generator) else None


def _dispatching(
    loader: DataLoader[Any],
    strategy: Strategy,
    share: Share,
    seeds: PassSeeds | None,
    transfer: Transfer | None,
    active: ActivePasses | None,
) -> PreparedLoader:
    alone = Share(1, 0, share.even, share.split, share.evaluation)
    reading = make_reading(loader, alone, 0, is_shared=True, is_seeded=True)  # it draws for the others too
    divided = make_reading(loader, share, share.shard, True, False)  # as it would be read by each: for its length
    is_stream = isinstance(reading, StreamReading)
    size, drop_last = (loader.batch_size, loader.drop_last) if is_stream else index_source(loader)[1:]
    dispatch = Dispatch(
        strategy.broadcast, share, strategy.global_rank == 0, divided.units, size, drop_last, divided.steps
    )
    return PreparedLoader(reading, share, seeds, transfer, dispatch, share.evaluation, active)


def _stateful(loader: Any) -> Any:
    """``loader`` as torchdata's, where its data set is iterable."""
    if not _is_stream(loader):
        return loader
    if importlib.util.find_spec("torchdata") is None:
        raise ConfigurationError(
            "use_stateful_dataloader=True: torchdata is not installed. Run `pip install torchdata`."
        )
    from torchdata.stateful_dataloader import StatefulDataLoader

    if isinstance(loader, StatefulDataLoader):
        return loader
    return StatefulDataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
    )


def skip_first_batches(loader: Any, num_batches: int = 0) -> PreparedLoader:
    """A loader of the batches of ``loader`` from number ``num_batches`` on, in each pass.

    Map-style data is skipped by index, and not loaded. A pass over it is one over ``loader``: the next pass over either
    is the next epoch. Where a position was loaded, the later of the two counts. One after the last batch of an epoch,
    of which ``num_batches`` would leave some, is the start of the next epoch.

    Args:
        loader: Prepared or not.
        num_batches: How many batches are left out.

    Raises:
        ConfigurationError: ``num_batches`` is not an integer ≥ 0.
    """
    check_count("num_batches", num_batches, 0)
    prepared = loader if isinstance(loader, PreparedLoader) else PreparedLoader(make_reading(loader, Share()), Share())
    if num_batches < prepared.batches_taken:
        prepared.leave_ended_pass()
    skipping = copy.copy(prepared)
    skipping._skip = num_batches
    return skipping
