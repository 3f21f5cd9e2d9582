"""Trying out settings before a ``fit``: short runs that leave no trace, and the ``Tuner`` of scripts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
from torch import nn

from ..callbacks.base import Callback
from ..callbacks.tuning import BatchSizeFinder, LearningRateFinder, LearningRateRange, Tuning
from ..data.combined import loaders_in
from ..data.loader_structure import generators_of
from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import suggest_arguments
from ..profilers import PassThroughProfiler
from ..random import get_host_rng_state, get_rng_state, set_host_rng_state, set_rng_state
from .checks import check_module, check_optimization
from .loop.data_sources import DataSource
from .metrics.metric_log import MetricLog
from .metrics.run_loggers import without_effect
from .module.module import Module
from .module.plain_module import as_module

if TYPE_CHECKING:
    from .trainer import Trainer

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
    """The tools that callbacks try out settings with; see :class:`core.callbacks.tuning.Tuning`."""

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
    """Call ``tune`` of the callbacks that try out settings, unless ``fit`` resumes from a checkpoint."""
    if trainer.is_trial or ckpt_path is not None or trainer.settings.fast_dev_run:
        return
    for callback in trainer.callbacks:
        if isinstance(callback, Tuning):
            callback.tune(Trial(trainer, module, source))


@contextmanager
def _restored(trainer: Trainer, source: DataSource) -> Iterator[None]:
    """A context that restores the states of the random number generators at its end."""
    strategy = trainer.strategy
    loaders = [loader for given in source.given.values() for loader in loaders_in(given)]
    generators = [(one, one.get_state()) for loader in loaders for one in generators_of(loader)]
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


def find_learning_rate(
    trainer: Trainer, module: nn.Module, train_dataloaders: Any = None, datamodule: Any = None, **options: Any
) -> LearningRateRange:
    """Search a learning rate as :class:`core.callbacks.LearningRateFinder` does, without training afterwards.

    Args:
        trainer: The Trainer whose settings, devices and strategy are used.
        module: The module; it is not changed but for the attribute with the learning rate.
        train_dataloaders: As in :meth:`core.Trainer.fit`.
        datamodule: As in :meth:`core.Trainer.fit`.
        **options: The arguments of :class:`core.callbacks.LearningRateFinder`.

    Returns:
        The learning rates and losses; ``suggestion()`` returns the learning rate that was set.
    """
    finder = LearningRateFinder(**options)
    finder.tune(_trial(trainer, module, train_dataloaders, datamodule))
    assert finder.optimal_lr is not None
    return finder.optimal_lr


def find_batch_size(trainer: Trainer, module: nn.Module, datamodule: Any = None, **options: Any) -> int:
    """Search a batch size as :class:`core.callbacks.BatchSizeFinder` does, without training afterwards.

    Args:
        trainer: The Trainer whose settings, devices and strategy are used.
        module: The module; it is not changed but for the attribute with the batch size.
        datamodule: As in :meth:`core.Trainer.fit`.
        **options: The arguments of :class:`core.callbacks.BatchSizeFinder`.

    Returns:
        The batch size that was set.
    """
    finder = BatchSizeFinder(**options)
    finder.tune(_trial(trainer, module, None, datamodule))
    assert finder.optimal_batch_size is not None
    return finder.optimal_batch_size


class Tuner:
    """Both searches under Lightning's names.

    Args:
        trainer: The Trainer whose settings, devices and strategy are used.
    """

    def __init__(self, trainer: Trainer) -> None:
        if not hasattr(trainer, "settings"):
            raise WrongTypeError(f"Tuner: trainer is an object of type {type(trainer).__name__}. Pass a core.Trainer.")
        self._trainer = trainer

    @suggest_arguments
    def lr_find(
        self,
        model: nn.Module,
        train_dataloaders: Any = None,
        *,
        datamodule: Any = None,
        method: str = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> LearningRateRange:
        """See :func:`core.find_learning_rate`; ``num_training`` is the finder's ``num_training_steps``.

        Raises:
            ConfigurationError: ``method`` is not ``"fit"``.
        """
        _check_method("lr_find", method)
        return find_learning_rate(
            self._trainer,
            model,
            train_dataloaders,
            datamodule,
            min_lr=min_lr,
            max_lr=max_lr,
            num_training_steps=num_training,
            mode=mode,
            early_stop_threshold=early_stop_threshold,
            update_attr=update_attr,
            attr_name=attr_name,
        )

    @suggest_arguments
    def scale_batch_size(
        self,
        model: nn.Module,
        datamodule: Any = None,
        *,
        method: str = "fit",
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float | None = None,
        max_val: int = 8192,
    ) -> int:
        """See :func:`core.find_batch_size`.

        Raises:
            ConfigurationError: ``method`` is not ``"fit"``.
        """
        _check_method("scale_batch_size", method)
        return find_batch_size(
            self._trainer,
            model,
            datamodule,
            mode=mode,
            steps_per_trial=steps_per_trial,
            init_val=init_val,
            max_trials=max_trials,
            batch_arg_name=batch_arg_name,
            margin=margin,
            max_val=max_val,
        )


def _check_method(search: str, method: str) -> None:
    if method != "fit":
        raise ConfigurationError(
            f"Tuner.{search}: method={method!r}: only training is searched. Leave it out; in evaluation, a batch needs "
            "less memory than in training."
        )


def _trial(trainer: Trainer, module: nn.Module, train_dataloaders: Any, datamodule: Any) -> Trial:
    adapted: Any = as_module(module)
    check_module(adapted, "training_step", "configure_optimizers")
    check_optimization(adapted, trainer.settings, trainer.strategy)
    source = DataSource.read("fit", adapted, datamodule, train_dataloaders=("train", train_dataloaders))
    return Trial(trainer, adapted, source)
