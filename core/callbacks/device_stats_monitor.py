"""Logs what the accelerator says of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .base import Callback
from .trainer_queries import send_to_loggers

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

__all__ = ["DeviceStatsMonitor"]


class DeviceStatsMonitor(Callback):
    """Sends the accelerator's ``get_device_stats`` of process 0's device to the loggers, such as the memory in use.

    They are named ``DeviceStatsMonitor.on_train_batch_end/<name>``, and read as often as metrics are logged.

    Args:
        cpu_stats: Whether to log those of the machine's processor too; by default only the accelerator's.

    Raises:
        ConfigurationError: When ``fit`` starts, the trainer has no logger.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats
        self._cpu: Any = None

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Check that there is a logger.

        Raises:
            ConfigurationError: There is none.
        """
        if stage != "fit" or trainer.fast_dev_run:
            return
        if not trainer.loggers:
            raise ConfigurationError(
                "DeviceStatsMonitor: the trainer has no logger. Set logger in Trainer, or remove the callback."
            )
        if self.cpu_stats and trainer.strategy.root_device.type != "cpu":
            from ..accelerators import CPUAccelerator

            self._cpu = CPUAccelerator()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log after a step whose metrics are logged."""
        step = trainer.global_step
        if step % trainer.log_every_n_steps or trainer.progress.is_accumulating or not trainer.is_global_zero:
            return
        strategy = trainer.strategy
        stats = dict(strategy.accelerator.get_device_stats(strategy.root_device))
        if self._cpu is not None:
            stats |= self._cpu.get_device_stats("cpu")
        values = {f"{type(self).__name__}.on_train_batch_end/{name}": float(value) for name, value in stats.items()}
        send_to_loggers(trainer, values, step - 1)
