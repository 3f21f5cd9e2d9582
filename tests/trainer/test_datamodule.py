"""Loaders from a DataModule and from the module, and the hooks that create their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from core import Callback, DataModule
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError, WrongTypeError

from .regression import Regression, assert_same, dataset, loader, quiet


class Data(DataModule):
    """Notes each call; the loaders are those of the regression."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.setups = 0

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")
        self.setups += 1
        assert self.trainer is not None

    def teardown(self, stage: str) -> None:
        self.calls.append(f"teardown {stage}")

    def train_dataloader(self) -> Any:
        return loader(shuffle=True)

    def val_dataloader(self) -> Any:
        return loader(20)

    test_dataloader = predict_dataloader = val_dataloader

    def state_dict(self) -> dict[str, Any]:
        return {"setups": self.setups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.setups += state["setups"]


class Other(Data):
    """Knows no such state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("position")


class OwnLoaders(Regression):
    """Has them itself, and a layer that it creates in ``setup``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("module prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"module setup {stage}")
        self.extra = torch.nn.Linear(1, 1)

    def teardown(self, stage: str) -> None:
        self.calls.append(f"module teardown {stage}")

    def train_dataloader(self) -> Any:
        return loader(shuffle=True)

    def val_dataloader(self) -> Any:
        return loader(20)

    def configure_optimizers(self) -> Any:
        assert self.extra.weight.numel() == 1
        return super().configure_optimizers()


def test_a_datamodule_gives_what_its_loaders_give() -> None:
    """Training, validation, test and prediction equal those with the loaders as arguments."""
    expected, module, data = Regression(), Regression(), Data()
    module.load_state_dict(expected.state_dict())
    results = []
    for trained, sources, held_out in (
        (expected, (loader(shuffle=True), loader(20)), loader(20)),
        (module, (data,), data),
    ):
        torch.manual_seed(0)
        trainer = quiet(max_epochs=2)
        trainer.fit(trained, *sources)
        results.append(
            (trainer.validate(trained, held_out), trainer.test(trained, held_out), trainer.predict(trained, held_out))
        )
    assert_same(expected, module)
    assert results[0][:2] == results[1][:2]
    assert all(torch.equal(*pair) for pair in zip(results[0][2], results[1][2], strict=True))
    stages = ("fit", "validate", "test", "predict")
    assert data.calls == [call for s in stages for call in ("prepare_data", f"setup {s}", f"teardown {s}")]


def test_the_module_itself_and_callbacks() -> None:
    """Without arguments the module's own loaders are used; its setup comes last, before its optimizers."""

    class Note(Callback):
        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            module.calls.append(f"callback setup {stage}")

        def teardown(self, trainer: Any, module: Any, stage: str) -> None:
            module.calls.append(f"callback teardown {stage}")

    module, trainer = OwnLoaders(), quiet(max_epochs=1, callbacks=Note())
    trainer.fit(module)
    assert trainer.global_step == 7
    assert set(trainer.callback_metrics) == {"error"}
    setups = ["module prepare_data", "callback setup fit", "module setup fit"]
    assert module.calls == [*setups, "callback teardown fit", "module teardown fit"]


def test_the_state_of_a_datamodule_is_in_checkpoints(tmp_path: Path) -> None:
    """A resumed fit gives it back; ``trainer.datamodule`` is the one in use."""
    writer = quiet(max_epochs=1, callbacks=ModelCheckpoint(tmp_path, "{epoch}"), enable_checkpointing=True)
    writer.fit(Regression(), datamodule=Data())
    data, trainer = Data(), quiet(max_epochs=2)
    trainer.fit(Regression(), datamodule=data, ckpt_path=tmp_path / "epoch=0.ckpt")
    assert data.setups == 2
    assert trainer.datamodule is data
    assert data.trainer is None
    for stage in ("validate", "test", "predict"):
        data = Data()
        getattr(quiet(), stage)(Regression(), datamodule=data, ckpt_path=tmp_path / "epoch=0.ckpt")
        assert data.setups == 2, stage
        other = Other()  # its state is not that of the DataModule that was trained on
        getattr(quiet(), stage)(Regression(), datamodule=other, ckpt_path=tmp_path / "epoch=0.ckpt")
        assert other.setups == 1, stage


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ConfigurationError, "fit: there is no loader. Pass train_dataloaders, or define train_dataloader in"),
        ({"train_dataloaders": [], "datamodule": Data()}, ConfigurationError, "'train_dataloaders' and a DataModule"),
        ({"train_dataloaders": Data(), "datamodule": Data()}, ConfigurationError, "train_dataloaders and datamodule"),
        ({"datamodule": Data}, WrongTypeError, "datamodule: must be a core.DataModule"),
        ({"datamodule": DataModule()}, ConfigurationError, "fit: there is no loader"),
    ],
)
def test_sources_that_contradict(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """The error names the arguments, and what to pass or define."""
    with pytest.raises(error, match=message):
        quiet(max_epochs=1).fit(Regression(), **arguments)


def test_a_method_that_returns_no_loader() -> None:
    """The error names the method."""
    data = type("Wrong", (Data,), {"train_dataloader": lambda self: 5})()
    with pytest.raises(WrongTypeError, match=r"Wrong\.train_dataloader: must be a torch DataLoader"):
        quiet(max_epochs=1).fit(Regression(), datamodule=data)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("on_save_checkpoint", "which the Trainer does not call. Use state_dict."),
        ("on_fit_start", "which is not a hook, so it would never be called."),
        ("on_before_batch_transfr", "Did you mean 'on_before_batch_transfer'"),
    ],
)
def test_a_hook_that_would_never_be_called_is_refused(name: str, remedy: str) -> None:
    """As in a module."""
    datamodule = type("Own", (Data,), {name: lambda self, *_: None})()
    with pytest.raises(ConfigurationError, match=f"datamodule: Own defines '{name}', .*{remedy}"):
        quiet(max_epochs=1).fit(Regression(), datamodule=datamodule)


class Stages(DataModule):
    """Its state says which part of the data its loaders have."""

    def __init__(self, stage: int) -> None:
        self.stage = stage

    def train_dataloader(self) -> Any:
        return DataLoader(dataset(16 + 8 * self.stage), batch_size=8, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(dataset(8 + 8 * self.stage), batch_size=8)

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stage = state["stage"]


@pytest.mark.parametrize("batch", [2, 4])
def test_a_resumed_run_has_the_loaders_that_the_state_stands_for(batch: int, tmp_path: Path) -> None:
    """The state is loaded before they are created: within an epoch, and at its end."""

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch_: Any, batch_idx: int) -> None:
            if trainer.global_step == batch:
                trainer.save_checkpoint(tmp_path / "saved")

    torch.manual_seed(0)
    whole, trainer = Regression(), quiet(max_epochs=2, callbacks=Save())
    trainer.fit(whole, datamodule=Stages(2))
    resumed, second = Regression(), quiet(max_epochs=2)
    second.fit(resumed, datamodule=Stages(0), ckpt_path=tmp_path / "saved")
    assert_same(resumed, whole)
    assert second.global_step == trainer.global_step == 8
    assert second.callback_metrics == trainer.callback_metrics
