"""Callbacks that try out settings before ``fit`` trains: the learning rate, and the largest batch size.

Source of the first: Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import BackendError, ConfigurationError, quoted
from ..hints.argument_checks import check_count
from ..logging import get_logger
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = get_logger(__name__)


class Tuning(Callback):
    """Tries out settings before each ``fit``, and sets the best for it. A resumed ``fit`` goes on with what it had."""

    found: Any = None
    """What the last search has set; ``None`` if nothing."""

    def set_found(self, module: Any, datamodule: Any, value: Any) -> None:
        """Set what a search has found.

        Args:
            module: The module of the ``fit``.
            datamodule: The DataModule, or ``None``.
            value: What :attr:`found` becomes.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What was found."""
        return {"found": self.found}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.found = state_dict.get("found")

    def tune(self, trial: Any) -> None:
        """Try out settings; called before ``fit`` begins, unless it is resumed or ``fast_dev_run`` is set.

        Args:
            trial: ``trial.run(callback, **settings)`` trains a copy of the module for a while, with that callback
                alone; module, random numbers and data are afterwards as they were. ``trial.trainer``, ``trial.module``
                and ``trial.source`` are those of the ``fit``.
        """
        raise NotImplementedError


def set_as_before(callbacks: Iterable[Callback], module: Any, datamodule: Any, states: Mapping[str, Any]) -> None:
    """Set again what was found in the run that is resumed, before loaders and optimizers are made.

    Args:
        callbacks: Of the ``fit``.
        module: Its module.
        datamodule: Its DataModule, or ``None``.
        states: The states of callbacks in the checkpoint, by their ``state_key``.
    """
    for callback in callbacks:
        if isinstance(callback, Tuning) and (found := states.get(callback.state_key, {}).get("found")) is not None:
            callback.set_found(module, datamodule, found)


def set_everywhere(owners: Sequence[Any], names: Sequence[str], value: Any = None) -> Any:
    """Read an attribute, or set it in each object that has it, or has it among its hyperparameters.

    Args:
        owners: A module and a DataModule, each of which may be ``None``.
        names: Names of the attribute; the first that exists counts.
        value: The new value; ``None`` only reads.

    Returns:
        The value, the old one if there is none to set.

    Raises:
        ConfigurationError: There is no such attribute.
    """
    for name in names:
        found = None
        for owner in owners:
            own = getattr(owner, "user_module", owner)  # of a plain torch.nn.Module
            hparams = getattr(owner, "hparams", None) or {}
            if owner is not None and hasattr(own, name):
                found = getattr(own, name)
                if value is not None:
                    setattr(own, name, value)
            if name in hparams:
                found = hparams[name]
                if value is not None:
                    hparams[name] = value
        if found is not None:
            return found if value is None else value
    raise ConfigurationError(
        f"module: it has no attribute or hyperparameter {quoted(names)} with a value, which is to be set. Set it in "
        "__init__ and use it in configure_optimizers or train_dataloader, or give its name."
    )


SEARCHES = ("power", "binsearch")


class _Rehearsal(Callback):
    """Runs forward and backward of each batch before the step, and ends the trial where a process lacks the memory.

    Nothing is exchanged while it runs, so no process waits for one that has failed.
    """

    def __init__(self) -> None:
        self.fits, self.is_whole = True, False

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Note whether one batch has all items."""
        self.is_whole = trainer.num_training_batches <= 1
        if trainer.world_size > 1:
            self.is_whole = bool(trainer.strategy.reduce(torch.tensor(float(self.is_whole)), "min"))

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> int | None:
        """Rehearse the batch; -1 ends the epoch in all processes."""
        if trainer.world_size == 1:
            return None
        strategy = trainer.strategy
        failed = False
        try:
            trainer.running_fit(type(self).__name__).rehearse(batch, batch_idx)
        except Exception as error:
            if not strategy.accelerator.is_out_of_memory(error):
                raise
            failed = True
        _free(trainer)
        if float(strategy.reduce(torch.tensor(float(failed), device=strategy.root_device), "max")):
            self.fits = False
            trainer.should_stop = trainer.progress.all_stop = True
            return -1
        return None

    def state_dict(self) -> dict[str, Any]:
        """The result."""
        return {"fits": self.fits, "is_whole": self.is_whole}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.fits, self.is_whole = state_dict["fits"], state_dict["is_whole"]


class BatchSizeFinder(Tuning):
    """Before ``fit``, trains copies of the module with growing batch sizes, and sets the largest that fits into memory.

    Module, optimizers and random numbers are afterwards as if nothing had happened. With several processes, each first
    runs forward and backward alone, and all use what fits into the memory of each. ``train_dataloader`` of the module
    or the DataModule is called for each size, so it must read the attribute. A resumed ``fit`` sets the size that was
    found before.

    Args:
        mode: ``"power"`` doubles the size until it is too large; ``"binsearch"`` then goes on between the last two.
        steps_per_trial: The number of optimizer steps with each size.
        init_val: The first size.
        max_trials: The largest number of sizes that are tried.
        batch_arg_name: The name of the attribute of module or DataModule, or of the hyperparameter.
        margin: The part of the size that ``"binsearch"`` found which is left as a reserve, from 0 to below 1; ``None``
            for 0.05. ``"power"`` has none.
        max_val: The largest size that is tried.

    Raises:
        ConfigurationError: An argument is out of range or has no effect; or, in ``fit``, loaders were passed, there is
            no such attribute, no size fits, or the strategy's processes cannot run forward and backward alone.
    """

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float | None = None,
        max_val: int = 8192,
    ) -> None:
        if mode not in SEARCHES:
            raise ConfigurationError(f"mode={mode!r}: must be 'power' or 'binsearch'.")
        counts = {"steps_per_trial": steps_per_trial, "init_val": init_val, "max_trials": max_trials}
        for name, value in (counts | {"max_val": max_val}).items():
            check_count(name, value, 1)
        if init_val > max_val:
            raise ConfigurationError(f"init_val={init_val}: is above max_val={max_val}, the largest size to try.")
        self._mode, self._steps, self._first, self._max_trials = mode, steps_per_trial, init_val, max_trials
        self._largest, self._margin = max_val, _read_margin(margin, mode)
        self._batch_arg_name = batch_arg_name
        self.optimal_batch_size: int | None = None
        """The result of the last search; ``None`` before the first."""

    def tune(self, trial: Any) -> None:
        """Search, and set the batch size.

        Raises:
            ConfigurationError: See the class.
        """
        _check(trial)
        names = [self._batch_arg_name]
        owners = [trial.module, trial.source.datamodule]
        before = set_everywhere(owners, names)
        try:
            best = self._search(trial, owners)
        except BaseException:
            set_everywhere(owners, names, before)
            raise
        self.set_found(trial.module, trial.source.datamodule, best)
        if trial.trainer.is_global_zero:
            logger.info("BatchSizeFinder: set %s to %d", self._batch_arg_name, best)

    def set_found(self, module: Any, datamodule: Any, value: int) -> None:
        """Set the batch size."""
        self.found = self.optimal_batch_size = set_everywhere([module, datamodule], [self._batch_arg_name], value)

    def _search(self, trial: Any, owners: list[Any]) -> int:
        size, fits, too_large = self._first, 0, 0
        for _ in range(self._max_trials):
            set_everywhere(owners, [self._batch_arg_name], size)
            works, is_whole = self._try(trial)
            if works:
                fits = size
            else:
                too_large = size
            if (works and is_whole) or (too_large and self._mode == "power") or too_large == 1:
                break
            size = (fits + too_large) // 2 if too_large else min(size * 2, self._largest)
            if size == fits or size < 1:
                break
        if not fits:
            raise ConfigurationError(
                f"BatchSizeFinder: {self._batch_arg_name}={too_large} does not fit into memory. Set a smaller "
                "init_val, or use a smaller model or another precision."
            )
        return max(1, int(fits * (1 - self._margin)))

    def _try(self, trial: Any) -> tuple[bool, bool]:
        """Whether the size that is set fits into memory, and whether one batch has all items."""
        trainer, rehearsal = trial.trainer, _Rehearsal()
        try:
            trial.run(rehearsal, max_steps=self._steps)
        except Exception as error:
            if trainer.world_size > 1 or not trainer.strategy.accelerator.is_out_of_memory(error):
                raise
            failed = True
        else:
            failed = not rehearsal.fits
        # Outside of the except block: its traceback would keep the tensors of the failed step alive.
        _free(trainer)
        return not failed, rehearsal.is_whole


def _read_margin(margin: float | None, mode: str) -> float:
    if margin is None:
        return 0.05 if mode == "binsearch" else 0.0
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin < 1:
        raise ConfigurationError(f"margin={margin!r}: must be a number from 0 to below 1, such as 0.05.")
    if mode == "power":
        raise ConfigurationError(
            f"margin={margin!r}: has no effect with mode='power'. Leave it out, or set mode='binsearch'."
        )
    return margin


def _free(trainer: Trainer) -> None:
    gc.collect()
    trainer.strategy.accelerator.empty_cache(trainer.strategy.root_device)


def _check(trial: Any) -> None:
    trainer, strategy = trial.trainer, trial.trainer.strategy
    if not trial.source.creates("train"):
        raise ConfigurationError(
            "BatchSizeFinder: a loader that was passed to fit keeps its batch size. Define train_dataloader in the "
            "module or in a DataModule, with batch_size=self.batch_size."
        )
    reason = None
    if not strategy.supports_custom_loop:
        reason = "it compiles each step for one batch size"
    elif strategy.world_size > 1 and (strategy.inference_is_collective or not strategy.supports_manual_optimization):
        reason = "its processes need each other within a forward or backward pass"
    elif strategy.world_size > 1 and (trainer.settings.sync_batchnorm or not trial.module.automatic_optimization):
        reason = "with sync_batchnorm or manual optimization, its processes need each other within the step"
    if reason is not None:
        raise ConfigurationError(
            f"BatchSizeFinder: strategy {strategy.name!r} cannot try out batch sizes: {reason}. Set the batch size, or "
            "search with one process."
        )


GROWTHS = ("exponential", "linear")
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
    their losses, so they agree. A resumed ``fit`` sets the learning rate that was found before.

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
        if mode not in GROWTHS:
            raise ConfigurationError(f"mode={mode!r}: must be 'exponential' or 'linear'.")
        self._arguments = (min_lr, max_lr, num_training_steps, mode, early_stop_threshold)
        self.update_attr = update_attr
        self.attr_name = attr_name
        self.optimal_lr: LearningRateRange | None = None
        """The result of the last search; ``None`` before the first."""

    def tune(self, trial: Any) -> None:
        """Search, and set the learning rate.

        Raises:
            ConfigurationError: The module optimizes manually, or has no such attribute.
        """
        if not trial.module.automatic_optimization:
            raise ConfigurationError(
                "LearningRateFinder: the module has automatic_optimization=False and decides about its learning rates "
                "itself. Remove one of the two."
            )
        if self.update_attr:
            set_everywhere([trial.module], self._names)
        found = self.optimal_lr = LearningRateRange(*self._arguments)
        trial.run(found, max_steps=found.num_training_steps)
        best = found.suggestion()
        if best is not None and self.update_attr:
            self.set_found(trial.module, None, best)
            if trial.trainer.is_global_zero:
                logger.info("LearningRateFinder: set the learning rate to %s", best)

    @property
    def _names(self) -> list[str]:
        return [self.attr_name] if self.attr_name else ["lr", "learning_rate"]

    def set_found(self, module: Any, datamodule: Any, value: float) -> None:
        """Set the module's learning rate."""
        self.found = set_everywhere([module], self._names, value)
