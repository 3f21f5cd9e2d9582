"""The largest batch size that fits into memory."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

import torch

from ...errors import ConfigurationError
from ...hints.argument_checks import check_count
from ..base import Callback
from .tuner_callback import Tuning, set_everywhere

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = ["BatchSizeFinder"]

logger = logging.getLogger(__name__)

MODES = ("power", "binsearch")


class _Rehearsal(Callback):
    """Runs forward and backward of each batch before the step, and ends the trial where a process lacks the memory.

    Nothing is exchanged while it runs, so no process waits for one that has failed.
    """

    def __init__(self) -> None:
        self.fits, self.is_whole = True, False
        self.is_rehearsed = False

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
    or the DataModule is called for each size, so it must read the attribute. A resumed ``fit`` does not search: set the
    size that was found before.

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
        if mode not in MODES:
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
        """What the last search found; ``None`` before."""

    def tune(self, trial: Any) -> None:
        """Search, and set the batch size; see the class."""
        self.scale_batch_size(trial)

    def scale_batch_size(self, trial: Any) -> None:
        """Like :meth:`tune`.

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
        self.optimal_batch_size = set_everywhere(owners, names, best)
        if trial.trainer.is_global_zero:
            logger.info("BatchSizeFinder: set %s to %d", self._batch_arg_name, best)

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
