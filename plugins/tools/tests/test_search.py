"""Searches over hyperparameters: trials that report, and end early, by the real libraries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_tools.search import PruneTrial, ReportToTune

from torch_hal import Module, Trainer
from torch_hal.errors import ConfigurationError


class Line(Module):
    """Learns y = 2 x, well or badly by its learning rate."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.layer, self.lr = nn.Linear(1, 1, bias=False), lr
        nn.init.zeros_(self.layer.weight)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (inputs,) = batch
        loss: torch.Tensor = (self.layer(inputs) - 2 * inputs).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def fit(lr: float, *callbacks: Any, epochs: int = 4) -> float:
    """Train; returns the last loss."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.linspace(-1, 1, 32)[:, None]), 8)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=epochs, callbacks=list(callbacks), **quiet)  # type: ignore[arg-type]
    trainer.fit(Line(lr), data, data)
    return trainer.callback_metrics["val_loss"].item()


def test_optuna_prunes_a_bad_trial() -> None:
    """Each epoch is reported as its number; a trial below the median ends after its first epoch."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rates = [0.5, 0.4, 1e-4]

    def objective(trial: Any) -> float:
        return fit(rates[trial.number], PruneTrial(trial, "val_loss"))

    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0))
    study.optimize(objective, n_trials=3)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert [sorted(trial.intermediate_values) for trial in study.trials] == [[0, 1, 2, 3], [0, 1, 2, 3], [0]]
    assert study.best_value == min(fit(rate) for rate in rates[:2])


def test_a_metric_that_is_not_logged() -> None:
    """Is named, with the nearest; the trial fails, and is not pruned."""
    optuna = pytest.importorskip("optuna")
    trial = optuna.create_study().ask()
    with pytest.raises(ConfigurationError, match=r"PruneTrial: 'val_los' has not been logged.*'val_loss'"):
        fit(0.1, PruneTrial(trial, "val_los"))


class Several:
    """What a run on two processes says of itself."""

    world_size = 2


NO_TRIAL: Any = None


@pytest.mark.parametrize("callback", [PruneTrial(NO_TRIAL, "x"), ReportToTune("x")])
def test_several_processes_are_refused(callback: Any) -> None:
    """Before the first epoch."""
    with pytest.raises(ConfigurationError, match=r"has 2 processes.*devices=1"):
        callback.on_train_start(Several(), None)


@pytest.mark.filterwarnings("ignore")
def test_ray_tune_ends_a_bad_trial(tmp_path: Path) -> None:
    """ASHA stops the worst trials at its first rung; the best runs all epochs."""
    pytest.importorskip("ray.tune", exc_type=ImportError)
    import ray
    from ray import tune

    warnings.simplefilter("ignore")

    def trainable(config: dict[str, float]) -> None:
        fit(config["lr"], ReportToTune(["val_loss"]), epochs=8)

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        results = tune.Tuner(
            trainable,
            param_space={"lr": tune.grid_search([0.5, 1e-4, 1e-5])},
            tune_config=tune.TuneConfig(
                metric="val_loss",
                mode="min",
                max_concurrent_trials=1,
                scheduler=tune.schedulers.ASHAScheduler(max_t=8, grace_period=1, reduction_factor=3),
            ),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        ).fit()
    finally:
        ray.shutdown()
    epochs = {result.config["lr"]: result.metrics["training_iteration"] for result in results}
    assert results.get_best_result().config["lr"] == 0.5
    assert epochs[0.5] == 8
    assert max(epochs[1e-4], epochs[1e-5]) < 8
