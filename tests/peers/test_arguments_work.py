"""Each argument of Lightning's Trainer that the table says is here has its effect: one minimal use of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_migrate.report import LIGHTNING
from torch_hal_migrate.tables import HERE

from core import Callback, Module, Trainer
from core.callbacks import ModelSummary, ProgressBar
from core.errors import DeviceError

DATA = TensorDataset(torch.arange(16.0).view(8, 2) / 16, torch.ones(8, 1))


class Net(Module):
    """Counts the batches of each stage, and notes what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1)
        self.seen: dict[str, list[Any]] = {"train": [], "val": [], "test": [], "predict": []}
        self.norms: list[float] = []
        self.stepped: list[int] = []
        self.inference: set[bool] = set()

    def loss(self, batch: Any) -> Any:
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1].to(batch[0].dtype))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen["train"].append(batch[0][0, 0].item())
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["val"].append((self.trainer.sanity_checking, self.current_epoch, self.global_step))
        self.inference.add(torch.is_inference_mode_enabled())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["test"].append(batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen["predict"].append(batch_idx)
        return self.layer(batch[0])

    def on_before_zero_grad(self, optimizer: Any) -> None:
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        self.norms += [float(nn.utils.get_total_norm(gradients))] if gradients else []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stops(Callback):
    """Asks to stop after each batch."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = True


def trainer(**given: Any) -> Trainer:
    quiet = {
        "devices": 1,
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
        "num_sanity_val_steps": 0,
        "accelerator": "cpu",
    }
    return Trainer(**{**quiet, **given})


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=2, **options)


def fitted(validates: bool = False, shuffle: bool = False, **given: Any) -> Net:
    net = Net()
    trainer(**given).fit(net, loader(shuffle=shuffle), loader() if validates else None)
    return net


def count(kind: str, validates: bool = False, **given: Any) -> int:
    return len(fitted(validates, **given).seen[kind])


def evaluated(stage: str, kind: str, **given: Any) -> int:
    net = Net()
    getattr(trainer(**given), stage)(net, loader())
    return len(net.seen[kind])


def norm(**given: Any) -> float:
    return max(fitted(**given).norms)


def largest(**given: Any) -> float:
    net = fitted(max_steps=1, **given)
    return max(float(p.grad.abs().max()) for p in net.parameters() if p.grad is not None)


def files(folder: Path, **given: Any) -> set[str]:
    fitted(**given, default_root_dir=folder)
    return {path.name for path in folder.rglob("*")}


def anomaly() -> str:
    class Bad(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return (self.layer(batch[0]) * 0).sqrt().sum() * 0

    with pytest.warns(UserWarning, match="sqrt"), pytest.raises(RuntimeError) as caught:
        trainer(detect_anomaly=True).fit(Bad(), loader())
    return str(caught.value)


def logged_steps(folder: Path, every: int) -> int:
    fitted(logger="csv", log_every_n_steps=every, default_root_dir=folder)
    (path,) = folder.rglob("metrics.csv")
    return len(path.read_text().splitlines()) - 1


def converted() -> list[str]:
    class WithNorm(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.kinds: list[str] = []

        def on_train_start(self) -> None:
            self.kinds = [type(self.norm).__name__]

    net = WithNorm()
    trainer(sync_batchnorm=True).fit(net, loader())
    return net.kinds


CASES: dict[str, Callable[[Path], bool]] = {
    "accelerator": lambda _: trainer(accelerator="cpu").strategy.root_device.type == "cpu",
    "strategy": lambda _: trainer(strategy="ddp_spawn", devices=2).plan.strategy.name == "ddp_spawn",
    "devices": lambda _: trainer(devices=2).world_size == 2,
    "num_nodes": lambda _: trainer(num_nodes=1).num_nodes == 1,
    "precision": lambda _: fitted(precision="64-true").layer.weight.dtype == torch.float64,
    "logger": lambda at: "metrics.csv" in files(at, logger="csv", log_every_n_steps=1),
    "callbacks": lambda _: count("train", callbacks=[Stops()], min_epochs=0) == 1,
    "fast_dev_run": lambda _: count("train", fast_dev_run=3) == 3,
    "max_epochs": lambda _: count("train", max_epochs=3) == 12,
    "min_epochs": lambda _: count("train", callbacks=[Stops()], max_epochs=4, min_epochs=2) == 8,
    "max_steps": lambda _: count("train", max_epochs=9, max_steps=5) == 5,
    "min_steps": lambda _: count("train", callbacks=[Stops()], max_epochs=4, min_epochs=0, min_steps=7) == 7,
    "limit_train_batches": lambda _: count("train", limit_train_batches=3) == 3,
    "limit_val_batches": lambda _: count("val", True, limit_val_batches=0.5) == 2,
    "limit_test_batches": lambda _: evaluated("test", "test", limit_test_batches=3) == 3,
    "limit_predict_batches": lambda _: evaluated("predict", "predict", limit_predict_batches=1) == 1,
    "overfit_batches": lambda _: (
        fitted(shuffle=True, overfit_batches=2, max_epochs=2).seen["train"]
        == [DATA[index][0][0].item() for index in (0, 2, 0, 2)]
    ),
    "val_check_interval": lambda _: (
        [step for *_, step in fitted(True, val_check_interval=2).seen["val"]] == [2] * 4 + [4] * 4
    ),
    "check_val_every_n_epoch": lambda _: (
        {e for _, e, _ in fitted(True, check_val_every_n_epoch=2, max_epochs=4).seen["val"]} == {1, 3}
    ),
    "num_sanity_val_steps": lambda _: (
        [sane for sane, *_ in fitted(True, num_sanity_val_steps=3).seen["val"]] == [True] * 3 + [False] * 4
    ),
    "log_every_n_steps": lambda at: (logged_steps(at / "a", 1), logged_steps(at / "b", 2)) == (4, 2),
    "enable_checkpointing": lambda at: any(name.endswith(".ckpt") for name in files(at, enable_checkpointing=True)),
    "enable_progress_bar": lambda _: any(
        isinstance(c, ProgressBar) for c in trainer(enable_progress_bar=True).callbacks
    ),
    "enable_model_summary": lambda _: any(
        isinstance(c, ModelSummary) for c in trainer(enable_model_summary=True).callbacks
    ),
    "auto_select_gpus": lambda _: "which devices other processes use" in selected(),
    "accumulate_grad_batches": lambda _: len(fitted(accumulate_grad_batches=2, max_epochs=3).norms) == 5,
    "gradient_clip_val": lambda _: norm() > 0.2 and norm(gradient_clip_val=0.1) == pytest.approx(0.1, rel=1e-4),
    "gradient_clip_algorithm": lambda _: (
        largest(gradient_clip_val=0.05, gradient_clip_algorithm="value") == pytest.approx(0.05)
    ),
    "inference_mode": lambda _: (
        (fitted(True).inference, fitted(True, inference_mode=False).inference) == ({True}, {False})
    ),
    "use_distributed_sampler": lambda _: (
        trainer(use_distributed_sampler=False).settings.use_distributed_sampler is False
    ),
    "profiler": lambda _: "run_training_batch" in profiled(),
    "detect_anomaly": lambda _: "nan" in anomaly(),
    "sync_batchnorm": lambda _: converted() in (["SyncBatchNorm"], ["BatchNorm1d"]),
    "default_root_dir": lambda at: "core_logs" in files(at, logger="csv", log_every_n_steps=1),
}
"""By argument, whether it has its effect. ``use_distributed_sampler`` and ``sync_batchnorm`` need several processes:
``tests/distributed`` and the tests of ``sync_batchnorm`` compare their results; here they are only taken."""


def selected() -> str:
    with pytest.raises(DeviceError) as caught:  # on the CPU there is nothing to choose from
        trainer(auto_select_gpus=True)
    return str(caught.value)


def profiled() -> str:
    runs = trainer(profiler="simple")
    runs.fit(Net(), loader())
    return runs.profiler.summary()


def test_each_argument_has_a_case() -> None:
    """Those of the table that are here."""
    assert {row.name for row in LIGHTNING.read()["trainer_arguments"].rows.values() if row.state == HERE} - {
        *CASES
    } == set()


@pytest.mark.parametrize("argument", CASES)
def test_the_argument_works(argument: str, tmp_path: Path) -> None:
    """A minimal use has the effect that its documentation states."""
    assert CASES[argument](tmp_path)
