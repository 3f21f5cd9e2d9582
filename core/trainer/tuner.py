"""Learning rate and batch size, found without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ..callbacks.tuning.batch_size_finder import BatchSizeFinder
from ..callbacks.tuning.learning_rate_finder import LearningRateFinder, LearningRateRange
from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import suggest_arguments
from .checks import check_module, check_optimization
from .loop.data_sources import DataSource
from .loop.trials import Trial
from .module.plain_module import as_module

if TYPE_CHECKING:
    from .trainer import Trainer

__all__ = ["Tuner", "find_batch_size", "find_learning_rate"]


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
