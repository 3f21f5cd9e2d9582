"""A learning rate from a short run in which it grows.

Source: Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import BackendError, ConfigurationError
from ...hints.argument_checks import check_count
from ..base import Callback
from .tuner_callback import Tuning, set_everywhere

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = ["LearningRateFinder", "LearningRateRange"]

logger = logging.getLogger(__name__)

MODES = ("exponential", "linear")
SMOOTHING = 0.98
"""How much of the running mean of the loss stays at each step."""


class LearningRateRange(Callback):
    """The learning rates of a short run, in which they grow, and the smoothed loss at each.

    Args:
        min_lr: The first learning rate.
        max_lr: The last one.
        num_training_steps: The number of optimizer steps.
        mode: ``"exponential"`` multiplies the learning rate by the same number at each step, ``"linear"`` adds it.
        early_stop_threshold: End when the loss is so many times the smallest one; ``None`` for never.
    """

    def __init__(
        self, min_lr: float, max_lr: float, num_training_steps: int, mode: str, early_stop_threshold: float | None
    ) -> None:
        self.min_lr, self.max_lr, self.num_training_steps = min_lr, max_lr, num_training_steps
        self.mode, self.early_stop_threshold = mode, early_stop_threshold
        self.results: dict[str, list[float]] = {"lr": [], "loss": []}
        """Learning rates and losses, by step."""
        self._mean, self._sum, self._batches, self._step = 0.0, 0.0, 0, 0

    def rate(self, step: int) -> float:
        """The learning rate of ``step``, from 0."""
        share = step / (self.num_training_steps - 1)
        if self.mode == "linear":
            return self.min_lr + (self.max_lr - self.min_lr) * share
        return float(self.min_lr * (self.max_lr / self.min_lr) ** share)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Set the learning rate of the step."""
        rate = self.rate(min(trainer.global_step, self.num_training_steps - 1))
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the loss, the mean over all processes and accumulated batches that have one."""
        strategy = trainer.strategy
        own = torch.zeros(2, device=strategy.root_device)  # the loss, and 1 unless the process has skipped its batch
        if outputs is not None:
            own[0], own[1] = (outputs if isinstance(outputs, Tensor) else outputs["loss"]).detach(), 1.0
        total, share = strategy.reduce(own).tolist()
        if share:
            self._sum += total / share
            self._batches += 1
        if trainer.global_step == self._step:
            return  # in an accumulation
        step, self._step = self._step, trainer.global_step
        if not self._batches:
            return  # all processes have skipped it
        value, self._sum, self._batches = self._sum / self._batches, 0.0, 0
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * value
        self.results["lr"].append(self.rate(step))
        smoothed = self._mean / (1 - SMOOTHING ** len(self.results["lr"]))
        self.results["loss"].append(smoothed)
        limit = self.early_stop_threshold
        if limit is not None and step > 1 and not smoothed <= limit * min(self.results["loss"][:-1]):
            trainer.should_stop = trainer.progress.all_stop = True

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The learning rate at which the loss falls fastest; ``None`` if there are too few finite losses.

        Args:
            skip_begin: The number of first steps that do not count.
            skip_end: The number of last steps that do not count.
        """
        rates, losses = (self.results[name][skip_begin : len(self.results["lr"]) - skip_end] for name in ("lr", "loss"))
        finite = [(rate, loss) for rate, loss in zip(rates, losses, strict=True) if math.isfinite(loss)]
        if len(finite) < 2:
            logger.warning("LearningRateFinder: too few finite losses to suggest a learning rate; change its range")
            return None
        rate, loss = torch.tensor(finite, dtype=torch.float64).T
        place = rate.log10() if self.mode == "exponential" else rate
        (slope,) = torch.gradient(loss, spacing=(place,))
        return finite[int(slope.argmin())][0]

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """A picture of the loss over the learning rate, as matplotlib's figure; needs matplotlib.

        Args:
            suggest: Mark the suggestion.
            show: Show it.
            ax: The axes to draw into.

        Raises:
            BackendError: matplotlib is not installed.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise BackendError(
                "LearningRateRange.plot needs matplotlib, which is not installed. Run: pip install matplotlib"
            ) from error
        axes = plt.subplots()[1] if ax is None else ax
        axes.plot(self.results["lr"], self.results["loss"])
        if self.mode == "exponential":
            axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        best = self.suggestion() if suggest else None
        if best is not None:
            axes.plot([best], [self.results["loss"][self.results["lr"].index(best)]], "o", color="red")
        if show:
            plt.show()
        return axes.get_figure()

    def state_dict(self) -> dict[str, Any]:
        """The results."""
        return {"results": self.results}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.results = state_dict["results"]


class LearningRateFinder(Tuning):
    """Before ``fit``, trains a copy of the module with a growing learning rate, and sets the one that is suggested.

    Module, optimizers, random numbers and data are afterwards as if nothing had happened. All processes use the mean of
    their losses, so they agree. A resumed ``fit`` keeps the learning rate that its checkpoint has.

    Args:
        min_lr: The first learning rate, > 0.
        max_lr: The last one.
        num_training_steps: The number of optimizer steps.
        mode: ``"exponential"`` multiplies the learning rate by the same number at each step, ``"linear"`` adds it.
        early_stop_threshold: End when the smoothed loss is so many times the smallest one; ``None`` for never.
        update_attr: Whether the module's attribute is set, from which ``configure_optimizers`` reads it.
        attr_name: The name of that attribute, or of a hyperparameter; by default ``lr`` or ``learning_rate``.

    Raises:
        ConfigurationError: An argument is out of range; or, in ``fit``, there is no such attribute.
    """

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training_steps: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> None:
        if not 0 < min_lr < max_lr:
            raise ConfigurationError(f"min_lr={min_lr!r}, max_lr={max_lr!r}: must be 0 < min_lr < max_lr.")
        check_count("num_training_steps", num_training_steps, 2)
        if mode not in MODES:
            raise ConfigurationError(f"mode={mode!r}: must be 'exponential' or 'linear'.")
        self._arguments = (min_lr, max_lr, num_training_steps, mode, early_stop_threshold)
        self.update_attr = update_attr
        self.attr_name = attr_name
        self.optimal_lr: LearningRateRange | None = None
        """What the last search found; ``None`` before."""

    def tune(self, trial: Any) -> None:
        """Search, and set the learning rate; see the class."""
        self.lr_find(trial)

    def lr_find(self, trial: Any) -> None:
        """Like :meth:`tune`.

        Raises:
            ConfigurationError: The module optimizes manually, or has no such attribute.
        """
        if not trial.module.automatic_optimization:
            raise ConfigurationError(
                "LearningRateFinder: the module has automatic_optimization=False and decides about its learning rates "
                "itself. Remove one of the two."
            )
        names = [self.attr_name] if self.attr_name else ["lr", "learning_rate"]
        if self.update_attr:
            set_everywhere([trial.module], names)
        found = self.optimal_lr = LearningRateRange(*self._arguments)
        trial.run(found, max_steps=found.num_training_steps)
        best = found.suggestion()
        if best is not None and self.update_attr:
            set_everywhere([trial.module], names, best)
            if trial.trainer.is_global_zero:
                logger.info("LearningRateFinder: set the learning rate to %s", best)
