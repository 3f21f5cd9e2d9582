"""Each member and hook of Lightning's modules and callbacks that the table says is here has its effect."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch_hal_migrate.report import LIGHTNING
from torch_hal_migrate.tables import HERE

from core import Callback, DataModule, Module
from core import callbacks as library
from core.callbacks import ModelCheckpoint
from core.errors import BackendError

from .test_arguments_work import Net, loader, trainer


def here(section: str) -> set[str]:
    return {row.name for row in LIGHTNING.read()[section].rows.values() if row.state == HERE}


# -- hooks ---------------------------------------------------------------------------------------------------------

ONCE = ("on_exception", "on_load_checkpoint")
"""Hooks that the run of all stages does not call; they have tests below."""


def noting(base: type[Any], calls: list[str], names: set[str]) -> type[Any]:
    """A class whose hooks note their names, and do what those of ``base`` do."""

    def hook(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            calls.append(name)
            return getattr(base, name)(self, *args)

        return call

    return type("Noting", (base,), {name: hook(name) for name in names})


class Plain(Net):
    def train_dataloader(self) -> Any:
        return loader()

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


STEPS = {"training_step", "validation_step", "test_step", "predict_step"}
ENDS = {f"{stage}_{part}_end" for stage in ("training", "validation", "test") for part in ("step", "epoch")}
CONFIGURED = {"configure_optimizers", "configure_callbacks", "configure_gradient_clipping"}
STEPPED = {"backward", "optimizer_step", "optimizer_zero_grad"}
DATA_HOOKS = {f"{kind}_dataloader" for kind in ("train", "val", "test", "predict")} | {
    "prepare_data",
    "setup",
    "teardown",
}
TRANSFER = {"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"}
CALLED = STEPS | ENDS | CONFIGURED | STEPPED | DATA_HOOKS | TRANSFER
"""Methods of modules besides ``on_...`` that the Trainer calls."""


def run_all(module: Any, path: Path, callbacks: Any = (), **data: Any) -> None:
    """Every stage, with a sanity check and a checkpoint."""
    runs = trainer(callbacks=list(callbacks), num_sanity_val_steps=1)
    runs.fit(module, **data)
    runs.save_checkpoint(path)
    for stage in ("validate", "test", "predict"):
        getattr(runs, stage)(module, **data)


def test_hooks_and_methods_of_modules(tmp_path: Path) -> None:
    """Each one is called in a run of all stages, in which a checkpoint is written."""
    names = {name for name in here("module_members") if name.startswith("on_")} - {*ONCE} | CALLED
    calls: list[str] = []
    run_all(noting(Plain, calls, names)(), tmp_path / "c")
    assert names - {*calls} == set()


def test_hooks_of_callbacks(tmp_path: Path) -> None:
    """Likewise; ``state_dict`` is called for the checkpoint."""
    names = {name for name in here("callback_members") if name.startswith("on_")} - {*ONCE}
    names |= {"setup", "teardown", "state_dict"}
    calls: list[str] = []
    run_all(Plain(), tmp_path / "c", [noting(Callback, calls, names)()])
    assert names - {*calls} == set()


class Data(DataModule):
    def train_dataloader(self) -> Any:
        return loader()

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


def test_hooks_of_datamodules(tmp_path: Path) -> None:
    """Likewise."""
    names = DATA_HOOKS | TRANSFER | {"state_dict"}
    calls: list[str] = []
    run_all(Net(), tmp_path / "c", datamodule=noting(Data, calls, names)())
    assert names - {*calls} == set()
    tested = {*ONCE, "from_datasets", "hparams", "hparams_initial", "load_from_checkpoint", "load_state_dict"}
    assert here("datamodule_members") - names - tested - {"save_hyperparameters"} == set()


class Holds(Callback):
    state_key = "held"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"number": 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls.append(state)

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.calls.append(sorted(checkpoint["callbacks"]))

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.calls.append(str(exception))


class Fails(Net):
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen["loaded"] = sorted(checkpoint["callbacks"])

    def on_train_start(self) -> None:
        raise RuntimeError("it fails")


class Kept(Data):
    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.loaded: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.hparams.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state

    def on_exception(self, exception: BaseException) -> None:
        self.failed = str(exception)


def test_what_is_called_when_a_run_is_resumed_and_fails(tmp_path: Path) -> None:
    """States of callbacks and of the DataModule come back, under the callback's key."""
    first = trainer(callbacks=[Holds()])
    first.fit(Net(), datamodule=Kept(5))
    first.save_checkpoint(tmp_path / "c")
    held, data, module = Holds(), Kept(), Fails()
    with pytest.raises(RuntimeError, match="it fails"):
        trainer(callbacks=[held], max_epochs=2).fit(module, datamodule=data, ckpt_path=tmp_path / "c")
    assert held.calls == [{"number": 3}, ["held"], "it fails"]
    assert (module.seen["loaded"], data.loaded, data.failed) == (["held"], {"at": 5}, "it fails")
    loaded: Any = Kept.load_from_checkpoint(tmp_path / "c")
    assert (loaded.hparams.size, loaded.hparams_initial.size, loaded.loaded) == (5, 5, {"at": 5})
    assert here("callback_members") - {name for name in dir(Callback) if name.startswith("on_")} <= {
        *("load_state_dict", "setup", "state_dict", "state_key", "teardown")
    }


# -- members of modules --------------------------------------------------------------------------------------------


class Asks(Net):
    """Calls ``ask`` in the first training step, and keeps the answer."""

    def __init__(self, ask: Callable[[Any], Any], width: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="ask")
        self.ask: Any = ask
        self.answer: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.answer is None:
            self.answer = self.ask(self)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [StepLR(optimizer, 1, 0.5)]


def asked(ask: Callable[[Any], Any], **given: Any) -> Any:
    module = Asks(ask)
    trainer(max_epochs=1, **given).fit(module, loader())
    return module.answer


def logs(module: Any) -> dict[str, float]:
    module.log("one", 1.0)
    module.log_dict({"two": 2.0, "three": 3.0})
    return {name: float(value) for name, value in module.trainer.callback_metrics.items()}


def clips(module: Any) -> float:
    module.layer.weight.grad = torch.full_like(module.layer.weight, 3.0)
    module.clip_gradients(module.trainer.optimizers[0], gradient_clip_val=0.5, gradient_clip_algorithm="value")
    largest = float(module.layer.weight.grad.max())
    module.zero_grad()
    return largest


class Manual(Module):
    """Two optimizers, of which one is toggled at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layer, self.other = nn.Linear(2, 1), nn.Linear(2, 1)
        self.toggled: list[tuple[bool, ...]] = []

    def grads(self) -> tuple[bool, bool]:
        return self.layer.weight.requires_grad, self.other.weight.requires_grad

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, _second = self.optimizers()
        self.toggle_optimizer(first)
        self.toggled.append(self.grads())
        self.untoggle_optimizer(first)
        with self.toggled_optimizer(first):
            self.toggled.append(self.grads())
            self.manual_backward(self.layer(batch[0]).sum())
            first.step()
            first.zero_grad()
        self.toggled.append(self.grads())
        self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        both = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.layer, self.other)]
        return both, [StepLR(both[0], 1, 0.5)]


def manual(of: str) -> bool:
    module = Manual()
    before = [layer.weight.detach().clone() for layer in (module.layer, module.other)]
    runs = trainer(max_steps=1)
    runs.fit(module, loader())
    moved = [not torch.equal(a, b.weight) for a, b in zip(before, (module.layer, module.other), strict=True)]
    if of == "toggles":
        return module.toggled == [(True, False), (True, False), (True, True)]
    return moved == [True, False]


class StepsScheduler(Asks):
    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.answer = "called"
        scheduler.step()


def scheduler_step() -> Any:
    module = StepsScheduler(lambda _: "not called")
    trainer().fit(module, loader())
    return module.answer


def frozen() -> tuple[bool, ...]:
    module = Net()
    module.freeze()
    facts = [module.layer.weight.requires_grad, module.training, module.layer.training]
    module.unfreeze()
    return (*facts, module.layer.weight.requires_grad, module.training, module.layer.training)


def loose(at: Path) -> bool:
    class Loose(Net):
        def __init__(self) -> None:
            super().__init__()
            self.strict_loading = False
            self.more = nn.Linear(1, 1)

    runs, module = trainer(), Net()
    runs.fit(module, loader())
    runs.save_checkpoint(at / "c")
    found: Any = Loose.load_from_checkpoint(at / "c")
    return torch.equal(found.layer.weight, module.layer.weight)


def loaded(at: Path) -> Any:
    module = Asks(lambda _: 0, width=7)
    runs = trainer()
    runs.fit(module, loader())
    runs.save_checkpoint(at / "c")
    found: Any = Asks.load_from_checkpoint(at / "c", ask=None)
    return found.hparams.width == found.hparams_initial.width == 7 and torch.equal(found.layer.bias, module.layer.bias)


def exported(at: Path) -> bool:
    class Exports(Net):
        example_input_array = torch.ones(3, 2)

        def forward(self, inputs: Any) -> Any:
            return self.layer(inputs)

    module = Exports()
    if not all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript")):
        with pytest.raises(BackendError, match="pip install onnx"):
            module.to_onnx(at / "m.onnx")
        return True
    with warnings.catch_warnings():  # torch's own
        warnings.simplefilter("ignore")
        module.to_onnx(at / "m.onnx")
    return (at / "m.onnx").stat().st_size > 0


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    asked(lambda module: module.print("said by", module.global_rank) or 0)
    return capsys.readouterr().out


MEMBERS: dict[str, Callable[[Path], Any]] = {
    "clip_gradients": lambda _: asked(clips) == 0.5,
    "current_epoch": lambda _: asked(lambda module: module.current_epoch) == 0,
    "global_step": lambda _: asked(lambda module: module.global_step) == 0,
    "device": lambda _: asked(lambda module: module.device) == torch.device("cpu"),
    "dtype": lambda _: asked(lambda module: module.dtype, precision="64-true") == torch.float64,
    "global_rank": lambda _: asked(lambda module: module.global_rank) == 0,
    "local_rank": lambda _: asked(lambda module: module.local_rank) == 0,
    "trainer": lambda _: asked(lambda module: module.trainer.max_epochs) == 1,
    "log": lambda _: asked(logs)["one"] == 1.0,
    "log_dict": lambda _: asked(logs) == {"one": 1.0, "two": 2.0, "three": 3.0},
    "logger": lambda at: asked(lambda m: type(m.logger).__name__, logger="csv", default_root_dir=at) == "CSVLogger",
    "loggers": lambda at: len(asked(lambda m: m.loggers, logger=["csv", "json"], default_root_dir=at)) == 2,
    "hparams": lambda _: asked(lambda module: module.hparams.width) == 1,
    "hparams_initial": lambda _: asked(lambda module: dict(module.hparams_initial)) == {"width": 1},
    "save_hyperparameters": lambda _: asked(lambda module: dict(module.hparams)) == {"width": 1},
    "load_from_checkpoint": loaded,
    "strict_loading": loose,
    "lr_scheduler_step": lambda _: scheduler_step() == "called",
    "optimizers": lambda _: asked(lambda module: type(module.optimizers()).__name__) != "list",
    "lr_schedulers": lambda _: asked(lambda module: type(module.lr_schedulers()).__name__) == "StepLR",
    "manual_backward": lambda _: manual("steps"),
    "toggle_optimizer": lambda _: manual("toggles"),
    "toggled_optimizer": lambda _: manual("toggles"),
    "untoggle_optimizer": lambda _: manual("toggles"),
    "freeze": lambda _: frozen()[:3] == (False, False, False),
    "unfreeze": lambda _: frozen()[3:] == (True, True, True),
    "example_input_array": exported,
    "to_onnx": exported,
}
"""By member of a module, whether it has its effect."""


def test_each_member_has_a_case() -> None:
    """Those of the table that are here; ``print`` has a test of its own."""
    hooks = {name for name in here("module_members") if name.startswith("on_")}
    assert here("module_members") - hooks - CALLED - {*MEMBERS} - {"print"} == set()


@pytest.mark.parametrize("member", MEMBERS)
def test_the_member_works(member: str, tmp_path: Path) -> None:
    """A minimal use has the effect that its documentation states."""
    assert MEMBERS[member](tmp_path)


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Process 0 prints."""
    assert printed(capsys) == "said by 0\n"


# -- callbacks -----------------------------------------------------------------------------------------------------


class Logs(Net):
    """Has a backbone, and logs a value that gets no better."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(2, 2)
        self.trained: list[bool] = []

    def loss(self, batch: Any) -> Any:
        return nn.functional.mse_loss(self.layer(self.backbone(batch[0])), batch[1])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.trained.append(self.backbone.weight.requires_grad)

    def on_train_epoch_end(self) -> None:
        self.log("worse", float(self.current_epoch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


def with_callback(*callbacks: Any, **given: Any) -> tuple[Any, Logs]:
    kinds = {
        "checkpointing": library.Checkpoint,
        "model_summary": library.ModelSummary,
        "progress_bar": library.ProgressBar,
    }
    own = {f"enable_{name}": None for name, kind in kinds.items() if any(isinstance(one, kind) for one in callbacks)}
    module, runs = Logs(), trainer(callbacks=list(callbacks), **{"max_epochs": 3, **own, **given})
    runs.fit(module, loader())
    return runs, module


class Freezes(library.BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 2:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)


def rows(at: Path, callback: Any) -> str:
    with_callback(callback, logger="csv", log_every_n_steps=1, default_root_dir=at)
    return next(at.rglob("metrics.csv")).read_text().splitlines()[0]


def averaged(kind: Any) -> bool:
    _, plain = with_callback()
    _, module = with_callback(kind())
    return not torch.equal(plain.layer.weight, module.layer.weight)


class FailsLater(Net):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            raise RuntimeError("it fails")


def on_exception(at: Path) -> bool:
    runs = trainer(callbacks=[library.OnExceptionCheckpoint(at)], enable_checkpointing=None)
    with pytest.raises(RuntimeError, match="it fails"):
        runs.fit(FailsLater(), loader())
    return any(at.iterdir())


def best(at: Path) -> list[str]:
    with_callback(ModelCheckpoint(at, monitor="worse", save_top_k=2))
    return sorted(path.name for path in at.iterdir())


def written() -> list[Any]:
    class Writer(library.BasePredictionWriter):
        def write_on_batch_end(self, *args: Any) -> None:
            notes.append((args[3], args[5]))

    notes: list[Any] = []
    trainer(callbacks=Writer("batch")).predict(Net(), loader(), return_predictions=False)
    return notes


CALLBACKS: dict[str, Callable[[Path], Any]] = {
    "BackboneFinetuning": lambda _: (
        with_callback(library.BackboneFinetuning(unfreeze_backbone_at_epoch=2, lambda_func=lambda e: 1.0))[1].trained
        == [False, False, True]
    ),
    "BasePredictionWriter": lambda _: written() == [([0, 1], 0), ([2, 3], 1), ([4, 5], 2), ([6, 7], 3)],
    "BaseFinetuning": lambda _: with_callback(Freezes())[1].trained == [False, False, True],
    "Callback": lambda _: library.Callback is Callback,
    "Checkpoint": lambda _: issubclass(library.ModelCheckpoint, library.Checkpoint),
    "DeviceStatsMonitor": lambda at: "DeviceStatsMonitor" in rows(at, library.DeviceStatsMonitor(cpu_stats=True)),
    "EarlyStopping": lambda _: (
        with_callback(library.EarlyStopping("worse", patience=1), max_epochs=9)[0].current_epoch == 2
    ),
    "GradientAccumulationScheduler": lambda _: (
        with_callback(library.GradientAccumulationScheduler({1: 4}))[0].global_step == 4 + 1 + 1
    ),
    "LambdaCallback": lambda at: [
        with_callback(library.LambdaCallback(on_train_end=lambda t, m: (at / "ended").touch())),
        (at / "ended").exists(),
    ][1],
    "LearningRateMonitor": lambda at: "lr-SGD" in rows(at, library.LearningRateMonitor()),
    "ModelCheckpoint": lambda at: best(at) == ["epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt"],
    "ModelSummary": lambda _: with_callback(summary := library.ModelSummary())[0] and summary.summary is not None,
    "OnExceptionCheckpoint": on_exception,
    "ProgressBar": lambda _: with_callback(library.ProgressBar())[0].current_epoch == 3,
    "TQDMProgressBar": lambda _: with_callback(library.TQDMProgressBar())[0].current_epoch == 3,
    "Timer": lambda _: with_callback(timer := library.Timer())[0] and timer.time_elapsed("train") > 0,
    "EMAWeightAveraging": lambda _: averaged(library.EMAWeightAveraging),
    "WeightAveraging": lambda _: averaged(library.WeightAveraging),
}
"""By callback, whether it has its effect."""


def test_each_callback_has_a_case() -> None:
    """Those of the table that are here; the newest have their own tests."""
    own = {"BatchSizeFinder", "LearningRateFinder", "StochasticWeightAveraging", "RichProgressBar", "RichModelSummary"}
    assert here("callbacks") - {*CALLBACKS} - own == set()


@pytest.mark.parametrize("name", CALLBACKS)
def test_the_callback_works(name: str, tmp_path: Path) -> None:
    """A minimal use has the effect that its documentation states."""
    assert CALLBACKS[name](tmp_path)
