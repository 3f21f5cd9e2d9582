"""Callbacks for searches over hyperparameters: they report to Optuna and Ray Tune, which end trials early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_hal import Callback
from torch_hal.errors import ConfigurationError, nearest, quoted

if TYPE_CHECKING:
    from optuna import Trial

__all__ = ["PruneTrial", "ReportToTune"]


class PruneTrial(Callback):
    """Reports a metric to an Optuna trial after each epoch, validation included, and ends a trial that Optuna prunes.

    ::

        def objective(trial):
            trainer = Trainer(devices=1, max_epochs=20, callbacks=[PruneTrial(trial, "val_loss")])
            trainer.fit(MyModule(lr=trial.suggest_float("lr", 1e-5, 1e-1, log=True)), data)
            return trainer.callback_metrics["val_loss"].item()

    Args:
        trial: The trial, of this process.
        monitor: The name of the metric, as the module logs it.

    Raises:
        optuna.TrialPruned: From ``fit``, which ``study.optimize`` takes for what it is.
        ConfigurationError: From ``fit``: the metric has not been logged, or there are several processes, of which each
            would report to its own trial.
    """

    def __init__(self, trial: Trial, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse several processes before the first epoch."""
        _refuse_several(trainer, "PruneTrial")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, and end the trial if Optuna says so."""
        import optuna  # only a run with a trial needs it

        self.trial.report(_metric(trainer, "PruneTrial", self.monitor), trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"pruned after epoch {trainer.current_epoch}")


class ReportToTune(Callback):
    """Reports metrics to Ray Tune after each epoch, validation included; Tune's scheduler ends what it does not need.

    Args:
        metrics: Names of metrics, as the module logs them.

    Raises:
        ConfigurationError: From ``fit``: a metric has not been logged, or there are several processes. For these, use
            Ray Train and ``torch_hal_ray.RayReport``.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = [metrics] if isinstance(metrics, str) else list(metrics)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse several processes before the first epoch."""
        _refuse_several(trainer, "ReportToTune")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report."""
        from ray import tune  # only a run in Tune needs it

        tune.report({name: _metric(trainer, "ReportToTune", name) for name in self.metrics})


def _refuse_several(trainer: Any, owner: str) -> None:
    if trainer.world_size > 1:
        raise ConfigurationError(
            f"{owner}: the run has {trainer.world_size} processes, and a trial belongs to one. Set devices=1."
        )


def _metric(trainer: Any, owner: str, name: str) -> float:
    metrics = trainer.callback_metrics
    if name not in metrics:
        raise ConfigurationError(
            f"{owner}: {name!r} has not been logged in this epoch.{nearest(name, metrics)} Logged: "
            f"{quoted(sorted(metrics)) if metrics else 'nothing'}."
        )
    return float(metrics[name])
