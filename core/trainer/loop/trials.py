"""Short runs before a ``fit``, which leave no trace."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from ...callbacks.base import Callback
from ...callbacks.tuning.tuner_callback import Tuning
from ...errors import ConfigurationError
from ...profilers import PassThroughProfiler
from ...random import get_host_rng_state, get_rng_state, set_host_rng_state, set_rng_state
from ..metrics.metric_log import MetricLog
from ..metrics.run_loggers import without_effect
from ..module.module import Module
from .data_sources import DataSource

if TYPE_CHECKING:
    from ..trainer import Trainer

__all__ = ["Trial", "tune"]

WITHOUT: dict[str, Any] = {
    "fast_dev_run": False,
    "max_epochs": -1,
    "min_epochs": None,
    "min_steps": None,
    "max_time": None,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
}
"""Settings of a trial."""


@attrs.frozen
class Trial:
    """What callbacks try out settings with; see :class:`core.callbacks.tuning.tuner_callback.Tuning`."""

    trainer: Trainer
    module: Module
    source: DataSource

    def run(self, callback: Callback, **settings: Any) -> None:
        """Train a copy of the module with ``callback`` alone, without validation, and with loggers that write nothing.

        The module, random number generators and the loaders' generators are afterwards as they were.

        Args:
            callback: Acts in the trial. What its ``state_dict`` has comes back from processes that are started for it.
            **settings: Settings of the Trainer, such as ``max_steps``.

        Raises:
            ConfigurationError: The module cannot be copied.
        """
        trainer = copy.copy(self.trainer)
        trainer.settings = attrs.evolve(trainer.settings, **WITHOUT, **settings)
        trainer.callbacks, trainer.profiler, trainer.is_trial = [callback], PassThroughProfiler(), True
        trainer.run = type(trainer.run)(metric_log=MetricLog(without_effect(trainer.loggers)))
        try:
            module = copy.deepcopy(self.module)
        except Exception as error:
            raise ConfigurationError(
                f"{type(self.module).__name__}: trying out settings needs a copy of the module, and it cannot be "
                f"copied: {error}"
            ) from error
        loaders = {f"{kind}_dataloaders": loader for kind, loader in self.source.given.items() if kind == "train"}
        with _restored(self.trainer, self.source):
            trainer.fit(module, datamodule=self.source.datamodule, **loaders)


def tune(trainer: Trainer, module: Module, source: DataSource, ckpt_path: Any) -> None:
    """Let callbacks try out settings, before a ``fit`` that begins anew."""
    if trainer.is_trial or ckpt_path is not None or trainer.settings.fast_dev_run:
        return
    for callback in trainer.callbacks:
        if isinstance(callback, Tuning):
            callback.tune(Trial(trainer, module, source))


@contextmanager
def _restored(trainer: Trainer, source: DataSource) -> Iterator[None]:
    """A context after which random number generators are as before it."""
    strategy = trainer.strategy
    generators = [(one, one.get_state()) for loader in source.given.values() for one in _generators(loader)]
    # The devices of processes that are started for a run have generators of their own.
    is_here = not trainer.plan.runs_function
    state = get_rng_state(strategy.accelerator, strategy.root_device) if is_here else get_host_rng_state()
    try:
        yield
    finally:
        if is_here:
            set_rng_state(state, strategy.accelerator, strategy.root_device)
        else:
            set_host_rng_state(state)
        for generator, before in generators:
            generator.set_state(before)


def _generators(loader: Any) -> Iterator[torch.Generator]:
    """The generators of a loader and its samplers."""
    if isinstance(loader, dict | list | tuple):
        for one in loader.values() if isinstance(loader, dict) else loader:
            yield from _generators(one)
        return
    batch_sampler = getattr(loader, "batch_sampler", None)
    for owner in (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator
