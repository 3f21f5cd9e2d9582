"""Another number of accumulated batches from given epochs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer


class GradientAccumulationScheduler(Callback):
    """Changes ``accumulate_grad_batches`` at given epochs.

    ::

        GradientAccumulationScheduler({4: 2, 8: 4})  # 1 in epochs 0 to 3, 2 in 4 to 7, 4 from 8 on

    Args:
        scheduling: By epoch, from 0, the number of batches for each optimizer step.

    Raises:
        ConfigurationError: ``scheduling`` is something else; or, when ``fit`` starts, the trainer has
            ``accumulate_grad_batches`` too, or the strategy steps the optimizer itself.
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        is_valid = isinstance(scheduling, Mapping) and scheduling
        if not is_valid or not all(
            type(epoch) is int and type(count) is int and epoch >= 0 and count >= 1
            for epoch, count in scheduling.items()
        ):
            raise ConfigurationError(
                f"scheduling={scheduling!r}: must be a dict with epochs ≥ 0 and, for each, a number of batches ≥ 1, "
                "such as {4: 2}."
            )
        self.scheduling = {0: 1, **dict(sorted(scheduling.items()))}
        self._taken = 1
        """What the Trainer has from this callback."""

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """The number of batches for each optimizer step of ``epoch``."""
        return self.scheduling[max(start for start in self.scheduling if start <= epoch)]

    def going_to_accumulate_grad_batches(self) -> bool:
        """Whether any epoch accumulates."""
        return any(count > 1 for count in self.scheduling.values())

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Check that the Trainer steps the optimizer, and that nothing else decides the number.

        Raises:
            ConfigurationError: The module steps by itself, or something else decides.
        """
        if stage != "fit":
            return
        if not getattr(pl_module, "automatic_optimization", True):
            raise ConfigurationError(
                f"GradientAccumulationScheduler: {type(pl_module).__name__} has automatic_optimization=False and steps "
                "by itself. Remove the callback, and call optimizer.step() every so many batches."
            )
        given = trainer.accumulate_grad_batches
        if given not in (1, self._taken):
            raise ConfigurationError(
                f"accumulate_grad_batches={given}, and there is a GradientAccumulationScheduler. Remove one of the two."
            )
        if not trainer.strategy.supports_custom_loop:
            raise ConfigurationError(
                f"GradientAccumulationScheduler: strategy {trainer.strategy.name!r} cannot change the number of "
                "batches within a fit. Set accumulate_grad_batches in Trainer."
            )

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the number of the running epoch, in which a resumed run may be."""
        self._set(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the number of the epoch."""
        self._set(trainer)

    def _set(self, trainer: Trainer) -> None:
        self._taken = self.get_accumulate_grad_batches(trainer.current_epoch)
        trainer.settings = trainer.running_fit(type(self).__name__).accumulate(self._taken)
