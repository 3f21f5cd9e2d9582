"""The other rows of Lightning's table: for each, a line of Python that runs and is true, in one process."""

from __future__ import annotations

import importlib
import importlib.util
import io
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from declared import PREFIX
from installing import import_packages_from_here
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from torch_hal_migrate.report import LIGHTNING
from torch_hal_migrate.tables import HERE, MISSING

from core import Callback, DataModule, Module, Trainer, callbacks, loggers, profilers, seed_everything
from core.callbacks import ModelCheckpoint
from core.errors import CoreError

from .test_arguments_work import CASES, DATA, loader, trainer
from .test_members_work import CALLBACKS, MEMBERS

TABLES = LIGHTNING.read()

# Of a running fit of two epochs, in its second one, after the third of four batches. t is the Trainer, m the module.
TRAINER_MEMBERS = {
    "accelerator": "t.accelerator.name == 'cpu'",
    "callback_metrics": "float(t.callback_metrics['loss']) > 0",
    "checkpoint_callback": "t.checkpoint_callback is t.checkpoint_callbacks[0]",
    "checkpoint_callbacks": "len(t.checkpoint_callbacks) == 1",
    "ckpt_path": "t.ckpt_path is None",
    "current_epoch": "t.current_epoch == 1",
    "default_root_dir": "t.default_root_dir == str(folder)",
    "device_ids": "t.device_ids == [0]",
    "early_stopping_callback": "t.early_stopping_callback.monitor == 'loss'",
    "early_stopping_callbacks": "t.early_stopping_callbacks == [t.early_stopping_callback]",
    "enable_validation": "t.enable_validation is True",
    "estimated_stepping_batches": "t.estimated_stepping_batches == 8",
    "evaluating": "t.evaluating is False",
    "fit": "callable(t.fit)",
    "global_rank": "t.global_rank == 0",
    "global_step": "t.global_step == 7",
    "interrupted": "t.interrupted is False",
    "is_global_zero": "t.is_global_zero is True",
    "is_last_batch": "t.is_last_batch is False",
    "lightning_module": "t.lightning_module is m",
    "local_rank": "t.local_rank == 0",
    "log_dir": "t.log_dir.startswith(str(folder))",
    "logged_metrics": "'loss' in t.logged_metrics",
    "logger": "t.logger is t.loggers[0]",
    "loggers": "len(t.loggers) == 1",
    "lr_scheduler_configs": "t.lr_scheduler_configs[0].interval == 'epoch'",
    "max_epochs": "t.max_epochs == 2",
    "max_steps": "t.max_steps == -1",
    "min_epochs": "t.min_epochs is None",
    "min_steps": "t.min_steps is None",
    "model": "t.model is m",
    "node_rank": "t.node_rank == 0",
    "num_devices": "t.num_devices == 1",
    "num_nodes": "t.num_nodes == 1",
    "num_predict_batches": "t.num_predict_batches == []",
    "num_sanity_val_batches": "t.num_sanity_val_batches == [1]",
    "num_test_batches": "t.num_test_batches == []",
    "num_training_batches": "t.num_training_batches == 4",
    "num_val_batches": "t.num_val_batches == [4]",
    "optimizers": "type(t.optimizers[0]).__name__ == 'SGD'",
    "precision": "t.precision == '32-true'",
    "precision_plugin": "t.precision_plugin.name == '32-true'",
    "predict": "callable(t.predict)",
    "predict_dataloaders": "t.predict_dataloaders is None",
    "predicting": "t.predicting is False",
    "print": "t.print(end='') is None",
    "progress_bar_callback": "t.progress_bar_callback is None",
    "progress_bar_metrics": "'loss' in t.progress_bar_metrics",
    "received_sigterm": "t.received_sigterm is False",
    "sanity_checking": "t.sanity_checking is False",
    "save_checkpoint": "t.save_checkpoint(folder / 'saved') is None and (folder / 'saved').exists()",
    "scaler": "t.scaler is None",
    "state": "(t.state.fn, t.state.stage, t.state.status, t.state.finished) == ('fit', 'train', 'running', False)",
    "strategy": "t.strategy.name == 'single_device'",
    "test": "callable(t.test)",
    "test_dataloaders": "t.test_dataloaders is None",
    "testing": "t.testing is False",
    "train_dataloader": "len(t.train_dataloader) == 4",
    "training": "t.training is True",
    "val_dataloaders": "len(t.val_dataloaders) == 4",
    "validate": "callable(t.validate)",
    "validating": "t.validating is False",
    "world_size": "t.world_size == 1",
    "callbacks": "len(t.callbacks) >= 3",
    "should_stop": "t.should_stop is False",
    "datamodule": "t.datamodule is None",
    "accumulate_grad_batches": "t.accumulate_grad_batches == 1",
    "check_val_every_n_epoch": "t.check_val_every_n_epoch == 1",
    "fast_dev_run": "t.fast_dev_run is False",
    "gradient_clip_algorithm": "t.gradient_clip_algorithm == 'norm'",
    "gradient_clip_val": "t.gradient_clip_val is None",
    "limit_predict_batches": "t.limit_predict_batches is None",
    "limit_test_batches": "t.limit_test_batches is None",
    "limit_train_batches": "t.limit_train_batches is None",
    "limit_val_batches": "t.limit_val_batches is None",
    "log_every_n_steps": "t.log_every_n_steps == 1",
    "num_sanity_val_steps": "t.num_sanity_val_steps == 1",
    "overfit_batches": "t.overfit_batches == 0",
    "val_check_interval": "t.val_check_interval == 1.0",
    "profiler": "type(t.profiler).__name__ == 'PassThroughProfiler'",
}
LOG_ARGUMENTS = {
    "name": "m.log('a', 1.0) is None",
    "value": "m.log(name='b', value=torch.ones(1)) is None",
    "prog_bar": "m.log('c', 1.0, prog_bar=True) is None and 'c' in t.progress_bar_metrics",
    "logger": "m.log('d', 1.0, logger=False) is None and 'd' not in t.logged_metrics",
    "on_step": "m.log('e', 3.0, on_step=True) is None and float(t.callback_metrics['e']) == 3",
    "on_epoch": "m.log('f', 1.0, on_epoch=True, on_step=True) is None and 'f_step' in t.callback_metrics",
    "reduce_fx": "m.log('g', 1.0, reduce_fx='max') is None",
    "enable_graph": "refused(lambda: m.log('h', 1.0, enable_graph=True))",
    "sync_dist": "m.log('i', 1.0, sync_dist=True) is None",
    "sync_dist_group": "refused(lambda: m.log('j', 1.0, sync_dist_group=object()))",
    "add_dataloader_idx": "m.log('k', 1.0, add_dataloader_idx=False) is None",
    "batch_size": "m.log('l', 1.0, batch_size=2) is None",
    "metric_attribute": "m.log('m', m.count, metric_attribute='count', on_step=False, on_epoch=True) is None",
    "rank_zero_only": "m.log('n', 1.0, rank_zero_only=True) is None and 'n' in t.callback_metrics",
}
DIFFERENT_MODULE_MEMBERS = {
    "all_gather": "m.all_gather(torch.ones(2)).shape == (2,)",
    "automatic_optimization": "m.automatic_optimization is True",
    "configure_model": "m.configured == 1",
    "on_gpu": "m.on_gpu is False",
    "on_save_checkpoint": "refused(lambda: [m.added.update(c=m.count), t.save_checkpoint(folder / 'c')])",
    "to_torchscript": "refused(m.to_torchscript)",
}
IN_A_FIT = {
    **{f"trainer_members {name}": line for name, line in TRAINER_MEMBERS.items()},
    **{f"log_arguments {name}": line for name, line in LOG_ARGUMENTS.items()},
    **{f"module_members {name}": line for name, line in DIFFERENT_MODULE_MEMBERS.items()},
}


def refused(call: Any) -> bool:
    """Whether it raises this package's error."""
    with pytest.raises(CoreError):
        call()
    return True


class Count:
    """As torchmetrics' metrics."""

    def __init__(self) -> None:
        self.total = 0.0

    def update(self, *args: Any) -> None:
        self.total += 1

    def compute(self) -> float:
        return self.total

    def reset(self) -> None:
        self.total = 0.0


class Asked(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count, self.configured = nn.Linear(2, 1), Count(), 0
        self.added = dict[str, Any]()

    def configure_model(self) -> None:
        self.configured += 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self.added)
        self.added = {}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Ask(Callback):
    """Evaluates the lines."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, dict[str, Any]()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) != (1, 2):
            return
        names = {"t": trainer, "m": module, "folder": self.folder, "torch": torch, "refused": refused}
        for row, line in IN_A_FIT.items():
            try:
                self.said[row] = eval(line, names)
            except Exception as error:
                self.said[row] = error


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By row, what its line gave in one fit."""
    folder = tmp_path_factory.mktemp("rows")
    ask = Ask(folder)
    own = [ask, ModelCheckpoint(), callbacks.EarlyStopping("loss", patience=9)]
    counts = {"max_epochs": 2, "log_every_n_steps": 1, "num_sanity_val_steps": 1}
    runs = trainer(callbacks=own, default_root_dir=folder, logger="csv", enable_checkpointing=None, **counts)
    runs.fit(Asked(), loader(), loader())
    return ask.said


@pytest.mark.parametrize("row", IN_A_FIT)
def test_in_a_running_fit(row: str, said: dict[str, Any]) -> None:
    """The line of the row is true."""
    assert said[row] is True, f"{IN_A_FIT[row]}: {said[row]!r}"


# -- rows that need no running fit ---------------------------------------------------------------------------------

LINES = {
    "seed_arguments": {
        "seed": "seed_everything(seed=3) == 3",
        "workers": "seed_everything(3, workers=True) == 3",
        "verbose": "seed_everything(3, verbose=False) == 3",
    },
    "fit_arguments": {
        "model": "trainer().fit(model=Net(), train_dataloaders=loader()) is None",
        "train_dataloaders": "trainer().fit(Net(), train_dataloaders=loader()) is None",
        "val_dataloaders": "trainer().fit(Net(), loader(), val_dataloaders=loader()) is None",
        "dataloaders": "trainer().validate(Net(), dataloaders=loader(), verbose=False) == [{}]",
        "datamodule": "trainer().fit(Net(), datamodule=Data()) is None",
        "ckpt_path": "trainer().fit(Net(), loader(), ckpt_path=saved(folder)) is None",
        "weights_only": "trainer().fit(Net(), loader(), ckpt_path=saved(folder), weights_only=True) is None",
        "verbose": "trainer().test(Net(), loader(), verbose=False) == [{}]",
        "return_predictions": "trainer().predict(Net(), loader(), return_predictions=False) is None",
    },
    "model_checkpoint_arguments": {
        "dirpath": "files(ModelCheckpoint(dirpath=folder)) == {'epoch=0-step=4.ckpt'}",
        "filename": "files(ModelCheckpoint(folder, filename='{step}')) == {'step=4.ckpt'}",
        "monitor": "files(ModelCheckpoint(folder, '{epoch}', monitor='score'), Scored()) == {'epoch=1.ckpt'}",
        "verbose": "files(ModelCheckpoint(folder, verbose=True)) == {'epoch=0-step=4.ckpt'}",
        "save_last": "'last.ckpt' in files(ModelCheckpoint(folder, save_last=True))",
        "save_top_k": "files(ModelCheckpoint(folder, save_top_k=0)) == set()",
        "save_on_exception": (
            "files(ModelCheckpoint(folder, save_on_exception=True), Fails()) == {'epoch=0-step=2.ckpt'}"
        ),
        "save_weights_only": "files(ModelCheckpoint(folder, save_weights_only=True)) == {'epoch=0-step=4.ckpt'}",
        "mode": "files(ModelCheckpoint(folder, '{epoch}', 'score', mode='max'), Scored()) == {'epoch=2.ckpt'}",
        "auto_insert_metric_name": (
            "files(ModelCheckpoint(folder, '{step}', auto_insert_metric_name=False)) == {'4.ckpt'}"
        ),
        "every_n_train_steps": "len(files(ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1))) == 2",
        "train_time_interval": (
            "len(files(ModelCheckpoint(folder, train_time_interval=timedelta(0), save_top_k=-1))) == 4"
        ),
        "every_n_epochs": "files(ModelCheckpoint(folder, every_n_epochs=2)) == set()",
        "save_on_train_epoch_end": (
            "files(ModelCheckpoint(folder, save_on_train_epoch_end=True)) == {'epoch=0-step=4.ckpt'}"
        ),
        "enable_version_counter": (
            "files(ModelCheckpoint(folder, enable_version_counter=False)) == {'epoch=0-step=4.ckpt'}"
        ),
    },
    "loggers": {
        "CSVLogger": "logged(loggers.CSVLogger(folder)) == 'metrics.csv'",
        "Logger": "issubclass(loggers.CSVLogger, loggers.Logger)",
        "TensorBoardLogger": "logged(loggers.TensorBoardLogger(folder)).startswith('events')",
    },
    "profilers": {
        "Profiler": "issubclass(profilers.SimpleProfiler, profilers.Profiler)",
        "AdvancedProfiler": "trainer(profiler=profilers.AdvancedProfiler()).fit(Net(), loader()) is None",
        "PassThroughProfiler": "trainer(profiler=profilers.PassThroughProfiler()).fit(Net(), loader()) is None",
        "PyTorchProfiler": "trainer(profiler=profilers.PyTorchProfiler(dirpath=folder)).fit(Net(), loader()) is None",
        "SimpleProfiler": "trainer(profiler=profilers.SimpleProfiler()).fit(Net(), loader()) is None",
    },
    "trainer_arguments": {
        "max_time": "trainer(max_time='00:00:00:00').fit(Net(), loader()) is None",
        "deterministic": "trainer(deterministic=True).fit(Net(), loader()) is None and not deterministic()",
        "benchmark": "trainer(benchmark=True).fit(Net(), loader()) is None",
        "barebones": "Trainer(accelerator='cpu', devices=1, barebones=True, max_epochs=1).fit(Net(), loader()) is None",
        "plugins": "trainer(plugins=['64-true']).precision == '64-true'",
        "reload_dataloaders_every_n_epochs": (
            "trainer(reload_dataloaders_every_n_epochs=1, max_epochs=2).fit(Net(), datamodule=Data()) is None"
        ),
    },
    "callbacks": {
        "BatchSizeFinder": "tuned(callbacks.BatchSizeFinder()) == {'optimal': 8, 'set': 8, 'used': 8}",
        "LearningRateFinder": "tuned_rate(min_lr=1e-3, max_lr=0.1, num_training_steps=21)",
        "StochasticWeightAveraging": (
            "trainer(max_epochs=2, callbacks=callbacks.StochasticWeightAveraging(0.01)).fit(Net(), loader()) is None"
        ),
        "RichProgressBar": "'4/4' in drawn(callbacks.RichProgressBar, 'console_kwargs').rpartition('loss: 1234')[0]",
        "RichModelSummary": "'layer' in drawn(callbacks.RichModelSummary) and '│' in drawn(callbacks.RichModelSummary)",
        "ThroughputMonitor": "items(callbacks.ThroughputMonitor(lambda batch: len(batch[0]), window_size=2)) == 8",
    },
}
"""By section and row, a line that is true."""

NOT_ALONE = {
    ("loggers", "CometLogger"): "needs its library; tests/loggers",
    ("loggers", "MLFlowLogger"): "needs its library; tests/loggers",
    ("loggers", "WandbLogger"): "needs its library; tests/loggers",
}
"""Rows that cannot run alone in this process, and why."""


class Data(DataModule):
    def train_dataloader(self) -> Any:
        return loader()


class Scored(Asked):
    """Is best in the second of three epochs, and worst in the third."""

    def on_train_epoch_end(self) -> None:
        self.log("score", [2.0, 1.0, 3.0][self.current_epoch])


class Fails(Asked):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            raise ZeroDivisionError


def files(checkpoint: ModelCheckpoint, module: Any = None) -> set[str]:
    """What it writes in a run of one epoch, or three of ``Scored``."""
    runs = trainer(callbacks=checkpoint, enable_checkpointing=None, max_epochs=3 if isinstance(module, Scored) else 1)
    with suppress(ZeroDivisionError):
        runs.fit(module or Asked(), loader())
    path = Path(str(checkpoint.dirpath))
    return {one.name for one in path.iterdir()} if path.is_dir() else set()


class Limited(Asked):
    """Has memory for eight items, and reads its batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size, self.lr = 1, 7.0

    def train_dataloader(self) -> Any:
        return DataLoader(ConcatDataset([DATA] * 8), batch_size=self.batch_size)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.used = len(batch[0])
        if self.used > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def tuned(finder: Any) -> dict[str, Any]:
    module = Limited()
    trainer(callbacks=finder).fit(module)
    return {"optimal": finder.optimal_batch_size, "set": module.batch_size, "used": module.used}


class NotesRate(Callback):
    rate = 0.0

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]


def tuned_rate(**arguments: Any) -> bool:
    """Whether the rates grow by the same factor, and the one of the steepest descent of the loss is used."""
    finder, module, notes = callbacks.LearningRateFinder(**arguments), Limited(), NotesRate()
    trainer(callbacks=[finder, notes]).fit(module)
    assert finder.optimal_lr is not None
    results = finder.optimal_lr.results
    assert results["lr"] == pytest.approx([1e-3 * 10 ** (step / 10) for step in range(21)])
    return module.lr == notes.rate == finder.optimal_lr.suggestion() != 7.0 and module.lr in results["lr"]


class Constant(Asked):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("loss", 1234.5, prog_bar=True)
        return self.layer(batch[0]).sum()


def drawn(kind: Any, argument: str = "") -> str:
    """What rich writes to a terminal in a fit."""
    written = io.StringIO()
    console = {"file": written, "force_terminal": True, "width": 120, "color_system": None, "_environ": {}}
    enabled: dict[str, Any] = {"enable_progress_bar": None} if argument else {"enable_model_summary": None}
    trainer(callbacks=kind(**({argument: console} if argument else console)), **enabled).fit(Constant(), loader())
    return written.getvalue()


def items(monitor: Any) -> float:
    """The items that the last values of a fit of four batches of two count."""
    logger = Kept()
    trainer(callbacks=monitor, logger=logger, log_every_n_steps=1).fit(Asked(), loader())
    return float(logger.values["train/samples"])


class Kept:
    """A logger that keeps the newest values."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.values.update(metrics)


def logged(logger: Any) -> str:
    trainer(logger=logger, log_every_n_steps=1).fit(Asked(), loader())
    return next(
        one.name for one in Path(str(logger.log_dir)).iterdir() if one.name.startswith(("metrics.csv", "event"))
    )


def saved(folder: Path) -> Path:
    runs, path = trainer(), folder / "saved"
    runs.fit(Net(), loader())
    runs.save_checkpoint(path)
    return path


class Net(Asked):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0])


@pytest.fixture
def namespace(tmp_path: Path) -> dict[str, Any]:
    """What the lines use."""
    own = {"loggers": loggers, "profilers": profilers, "seed_everything": seed_everything, "timedelta": timedelta}
    return {**globals(), **own, "folder": tmp_path, "deterministic": torch.are_deterministic_algorithms_enabled}


@pytest.mark.parametrize(("section", "row"), [(section, row) for section, rows in LINES.items() for row in rows])
def test_the_line_is_true(section: str, row: str, namespace: dict[str, Any]) -> None:
    """What the row's line says holds."""
    if row == "TensorBoardLogger" and importlib.util.find_spec("tensorboard") is None:
        pytest.skip(f"{PREFIX}tensorboard not installed")
    if row.startswith("Rich") and importlib.util.find_spec("rich") is None:
        pytest.skip(f"{PREFIX}rich not installed")
    assert eval(LINES[section][row], namespace) is True, LINES[section][row]


@pytest.mark.parametrize("row", [row for row in TABLES["names"].rows.values() if row.state != MISSING], ids=str)
def test_the_import_works(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name can be imported from where the table says."""
    import_packages_from_here(monkeypatch)
    module, _, name = row.here.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


EPOCH_ENDS = [f"on_{stage}_epoch_end" for stage in ("train", "validation", "test", "predict")]


@pytest.mark.parametrize("hook", EPOCH_ENDS)
def test_the_module_comes_first_at_the_end_of_an_epoch(hook: str) -> None:
    """The module's hook runs before that of a callback."""
    called: list[str] = []
    module = type("Notes", (Net,), {hook: lambda self: called.append("module")})()
    callback = type("Noting", (Callback,), {hook: lambda self, *_: called.append("callback")})()
    stage = {"train": "fit", "validation": "validate"}.get(name := hook.split("_")[1], name)
    getattr(trainer(callbacks=[callback]), stage)(module, loader())
    assert called == ["module", "callback"]


def test_every_row_is_executed() -> None:
    """Each row that is not missing has a line here, or a case in the two other files; or a reason why it has none."""
    done = {
        "names": set(TABLES["names"].rows),
        "trainer_members": set(TRAINER_MEMBERS),
        "log_arguments": set(LOG_ARGUMENTS),
        "trainer_arguments": {*CASES, *LINES["trainer_arguments"]},
        "callbacks": {*CALLBACKS, *LINES["callbacks"]},
        **{name: set(LINES[name]) for name in ("seed_arguments", "fit_arguments", "loggers", "profilers")},
        "model_checkpoint_arguments": set(LINES["model_checkpoint_arguments"]),
    }
    for section, table in TABLES.items():
        states = (HERE,) if section in ("datamodule_members", "callback_members") else (HERE, "differs")
        rows = {row.name for row in table.rows.values() if row.state in states}
        without = {row for name, row in NOT_ALONE if name == section}
        if section in done:
            assert rows - done[section] - without == set(), section
    of_modules = {row.name for row in TABLES["module_members"].rows.values() if row.state == "differs"}
    # Those with "_model_train" have their test in tests/trainer/test_evaluation.py.
    assert all("_model_train" in name for name in of_modules - {*DIFFERENT_MODULE_MEMBERS, *MEMBERS, *EPOCH_ENDS})
