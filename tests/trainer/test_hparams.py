"""Hyperparameters: where they come from, what a checkpoint holds of them, and what is created from it."""

from __future__ import annotations

import pickle
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from core import Callback, DataModule, Module, convert
from core.errors import CheckpointError, ConfigurationError, WrongTypeError

from .regression import Regression, assert_same, loader, quiet


class Sized(Regression):
    def __init__(self, width: int, lr: float = 0.1, *, names: list[str] | None = None, **others: Any) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, width), nn.Linear(width, 1))
        self.save_hyperparameters()


class Larger(Sized):
    def __init__(self, depth: int, width: int = 4) -> None:
        super().__init__(width * depth, lr=1.0)


def test_all_arguments() -> None:
    """Keyword-only ones and those without a name too; as attributes and items; the initial ones stay."""
    module = Sized(3, names=["a"], extra=5)
    assert module.hparams == {"width": 3, "lr": 0.1, "names": ["a"], "extra": 5}
    assert module.hparams.width == module.hparams["width"] == 3
    module.hparams.width = 9
    module.hparams["names"].append("b")
    assert module.hparams.width == 9
    assert module.hparams_initial == {"width": 3, "lr": 0.1, "names": ["a"], "extra": 5}
    with pytest.raises(AttributeError, match=r"no hyperparameter 'widht'\. Did you mean 'width'"):
        _ = module.hparams.widht
    assert pickle.loads(pickle.dumps(module)).hparams == module.hparams
    assert Regression().hparams == {}


def test_a_subclass_arguments_are_kept_too() -> None:
    """Where only the base class calls it; the subclass's value of a name counts."""
    assert Larger(2).hparams == {"depth": 2, "width": 4, "lr": 1.0, "names": None}


def test_names_and_what_is_left_out() -> None:
    class Some(Module):
        def __init__(self, a: int, b: int, c: int) -> None:
            super().__init__()
            self.save_hyperparameters("a", "b")
            self.save_hyperparameters("c", ignore="b")

    assert Some(1, 2, 3).hparams == {"a": 1, "c": 3}

    class Wrong(Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters("widht")

    with pytest.raises(ConfigurationError, match=r"Wrong.__init__ has no argument 'widht'. Did you mean 'width'"):
        Wrong(1)


@dataclass
class Config:
    width: int
    lr: float = 0.1


class Configured(Regression):
    def __init__(self, config: Any, other: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters(config)
        self.network = nn.Sequential(nn.Linear(6, self.hparams.width), nn.Linear(self.hparams.width, 1))
        self.width = config["width"] if isinstance(config, dict) else config.width


@pytest.mark.parametrize("config", [Config(3), Namespace(width=3, lr=0.1), {"width": 3, "lr": 0.1}])
def test_one_object_with_all(config: Any, tmp_path: Path) -> None:
    """Its items are the hyperparameters; created from a checkpoint, the module gets them as one object again."""
    module = Configured(config)
    assert module.hparams == {"width": 3, "lr": 0.1}
    loaded = Configured.load_from_checkpoint(saved(module, tmp_path))
    assert loaded.hparams == module.hparams
    assert loaded.width == 3
    assert_same(loaded, module)


def test_an_object_without_names() -> None:
    class Wrong(Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters(width)

    with pytest.raises(WrongTypeError, match="3 of type int holds no named values"):
        Wrong(3)


def saved(module: Any, tmp_path: Path, datamodule: Any = None, **settings: Any) -> Path:
    """A checkpoint of a fit."""

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "saved")

    data = {"datamodule": datamodule} if datamodule else {"train_dataloaders": loader()}
    quiet(max_epochs=1, callbacks=Save(), **settings).fit(module, **data)
    return tmp_path / "saved"


@pytest.mark.parametrize("checkpoint_io", ["torch", "sharded"])
def test_a_module_from_a_checkpoint(checkpoint_io: str, tmp_path: Path) -> None:
    """Of either format, and from one file; arguments that are given count."""
    module = Sized(3, names=["a"], extra=5)
    path = saved(module, tmp_path, checkpoint_io=checkpoint_io)
    one_file = convert.convert(path) if checkpoint_io == "sharded" else path
    for place in (path, one_file):
        loaded = Sized.load_from_checkpoint(place)
        assert_same(loaded, module)
        assert loaded.hparams == module.hparams
    assert Sized.load_from_checkpoint(path, lr=0.5).hparams.lr == 0.5
    assert Sized.load_from_checkpoint(path, map_location=torch.device("cpu")).device.type == "cpu"


def test_what_load_from_checkpoint_refuses(tmp_path: Path) -> None:
    path = saved(Sized(3), tmp_path)
    with pytest.raises(ConfigurationError, match=r"called on an object.*module = Sized.load_from_checkpoint\(path\)"):
        Sized(3).load_from_checkpoint(path)
    with pytest.raises(CheckpointError, match="state_dict"):
        Sized.load_from_checkpoint(path, width=5)
    with pytest.raises(CheckpointError, match="state_dict"):
        Regression.load_from_checkpoint(path)
    with pytest.raises(CheckpointError):
        Sized.load_from_checkpoint(tmp_path / "nowhere")

    class Renamed(Sized):
        def __init__(self, size: int) -> None:
            super().__init__(size)

    with pytest.raises(ConfigurationError, match=r"Renamed needs the arguments \['size'\].*size=\.\.\."):
        Renamed.load_from_checkpoint(path)


def test_strict_loading(tmp_path: Path) -> None:
    """An attribute of the class or an argument; keys that are missing or left over do not matter then."""
    path = saved(Sized(3), tmp_path)

    class More(Sized):
        strict_loading = False

        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.head = nn.Linear(1, 1)

    assert More.load_from_checkpoint(path).hparams.width == 3
    with pytest.raises(CheckpointError, match=r"head\.weight"):
        More.load_from_checkpoint(path, strict=True)


def test_arguments_without_a_name(caplog: pytest.LogCaptureFixture) -> None:
    """They cannot be saved, which a warning says; those that a base class has a name for can."""

    class Widths(Regression):
        def __init__(self, *widths: int, bias: bool = True) -> None:
            super().__init__()
            self.save_hyperparameters(ignore=["widths"] if 9 in widths else None)

    class Further(Sized):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)

    assert Further(4).hparams.width == 4
    assert Widths(9, 8).hparams == Widths(bias=True).hparams == {"bias": True}
    assert "no name" not in caplog.text
    Widths(7, 8)
    assert "save_hyperparameters: 2 argument(s) in *widths of Widths have no name" in caplog.text


def test_what_could_not_be_read_back_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checkpoints hold plain data only; the warning names what is left out, once."""

    class Holds(Regression):
        def __init__(self, loss: Any, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()

    path = saved(Holds(Config(1)), tmp_path)
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"width": 3}
    (warning,) = [record.getMessage() for record in caplog.records if "hyperparameters" in record.getMessage()]
    assert "Holds: the hyperparameters 'loss' are not in the checkpoint" in warning
    assert "ignore=['loss']" in warning
    assert Holds.load_from_checkpoint(path, loss=Config(2)).hparams.loss == Config(2)


class Numbers(DataModule):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.used = 0

    def train_dataloader(self) -> Any:
        self.used += 1
        return loader(self.hparams.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"used": self.used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.used = state["used"]


def test_a_datamodule_from_a_checkpoint(tmp_path: Path) -> None:
    """Its own hyperparameters and state."""
    path = saved(Sized(3), tmp_path, datamodule=Numbers(25))
    loaded: Any = Numbers.load_from_checkpoint(path)
    assert loaded.hparams == {"batch_size": 25}
    assert loaded.used == 1
    assert Sized.load_from_checkpoint(path).hparams.width == 3


def test_loggers_get_both_and_conflicts_are_refused() -> None:
    class Keeps:
        def __init__(self) -> None:
            self.params: dict[str, Any] = {}

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            pass

        def log_hyperparams(self, params: dict[str, Any]) -> None:
            self.params = params

    class Batched(Regression):
        def __init__(self, batch_size: int, logs: bool = True) -> None:
            super().__init__()
            self.save_hyperparameters("batch_size", logger=logs)

    keeps = Keeps()
    quiet(max_epochs=1, logger=keeps).fit(Sized(3), datamodule=Numbers(25))
    assert keeps.params == {"width": 3, "lr": 0.1, "names": None, "batch_size": 25}
    with pytest.raises(ConfigurationError, match="different values for 'batch_size'"):
        quiet(max_epochs=1, logger=keeps).fit(Batched(5), datamodule=Numbers(25))
    quiet(max_epochs=1, logger=keeps).fit(Batched(5, logs=False), datamodule=Numbers(25))
    assert keeps.params == {"batch_size": 25}
