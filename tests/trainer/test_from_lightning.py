"""What scripts of Lightning's pass: objects of its own classes, data sets, files of hyperparameters."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from core import DataModule, Module, seed_everything
from core.errors import CheckpointError, ConfigurationError, WrongTypeError

from .regression import Regression, dataset, loader, quiet


def lightnings(name: str, base: type[Any] = object) -> Any:
    """An object of a user's class that derives from a class of this name in Lightning."""
    kind = type(name, (base,), {"__module__": "lightning.pytorch.core"})
    return type("Net", (kind,), {})()


@pytest.mark.parametrize(
    ("run", "ours"),
    [
        (lambda: quiet().fit(lightnings("LightningModule", nn.Module), loader()), "Module as LightningModule"),
        (lambda: quiet().test(lightnings("LightningModule", nn.Module), loader()), "Module as LightningModule"),
        (
            lambda: quiet().fit(Regression(), datamodule=lightnings("LightningDataModule")),
            "DataModule as LightningDataModule",
        ),
        (lambda: quiet().fit(Regression(), lightnings("LightningDataModule")), "DataModule as LightningDataModule"),
        (lambda: quiet(callbacks=[lightnings("Callback")]), "Callback"),
    ],
)
def test_objects_of_lightnings_classes(run: Any, ours: str) -> None:
    """The error names the import to write and the command that lists what else differs."""
    with pytest.raises(WrongTypeError, match=rf"'from core import {ours}', and run 'torch-hal migrate FILE'"):
        run()


class Sized(DataModule):
    def __init__(self, factor: int, batch_size: int = 3) -> None:
        super().__init__()
        self.factor, self.batch_size = factor, batch_size


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_a_datamodule_from_data_sets() -> None:
    """Only training is shuffled; the constructor gets the arguments that it has; the loaders can be sent away."""
    data = Sized.from_datasets(dataset(), [dataset(9), dataset(5)], predict_dataset=Stream(), batch_size=4, factor=2)
    assert (data.factor, data.batch_size) == (2, 4)
    data = pickle.loads(pickle.dumps(data))
    train, val = data.train_dataloader(), data.val_dataloader()
    assert isinstance(train.sampler, RandomSampler)
    assert [type(one.sampler).__name__ for one in val] == ["SequentialSampler"] * 2
    assert [len(one) for one in (train, *val)] == [13, 3, 2]
    assert [batch.tolist() for batch in data.predict_dataloader()] == [[0, 1, 2]]
    trainer = quiet(max_epochs=1)
    trainer.fit(Regression(), datamodule=DataModule.from_datasets(dataset(), dataset(9), batch_size=5))
    assert (trainer.global_step, set(trainer.callback_metrics)) == (10, {"error"})


def test_what_is_no_data_set() -> None:
    """Is named."""
    with pytest.raises(WrongTypeError, match=r"val_dataset: must be a torch Dataset.*not an object of type DataLoader"):
        DataModule.from_datasets(val_dataset=[DataLoader(dataset())])


class Wide(Module):
    def __init__(self, width: int = 1, name: str = "a") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(6, width)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("h.json", json.dumps({"width": 2, "name": "b"})),
        ("h.csv", "key,value\nwidth,2\nname,b\n"),
        ("h.yaml", "width: 2\nname: b\n"),
    ],
)
def test_hyperparameters_of_a_file(file: str, text: str, tmp_path: Path) -> None:
    """They replace those of the checkpoint; arguments replace both."""
    if file.endswith("yaml"):
        pytest.importorskip("yaml")
    trainer = quiet(max_epochs=1)
    trainer.fit(Wide(2), loader())
    trainer.save_checkpoint(tmp_path / "c")
    (tmp_path / file).write_text(text)
    loaded = Wide.load_from_checkpoint(tmp_path / "c", hparams_file=tmp_path / file)
    assert (loaded.hparams.width, loaded.hparams.name) == (2, "b")
    loaded = Wide.load_from_checkpoint(tmp_path / "c", hparams_file=tmp_path / file, name="c")
    assert loaded.hparams.name == "c"


@pytest.mark.parametrize(
    ("file", "text", "error", "said"),
    [
        ("h.txt", "", ConfigurationError, "must end with"),
        ("h.json", "[1]", CheckpointError, "holds a list"),
        ("h.json", "{", CheckpointError, "could not be read"),
        ("none.json", None, CheckpointError, "could not be read"),
    ],
)
def test_files_without_hyperparameters(file: str, text: str | None, error: Any, said: str, tmp_path: Path) -> None:
    """Are named in the error."""
    trainer = quiet(max_epochs=1)
    trainer.fit(Wide(), loader())
    trainer.save_checkpoint(tmp_path / "c")
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(error, match=rf"{file}'.*{said}"):
        Wide.load_from_checkpoint(tmp_path / "c", hparams_file=tmp_path / file)


def test_arguments_by_lightnings_names() -> None:
    """Each stage takes ``model=``; ``seed_everything`` takes ``workers=True``, which holds in any case."""
    trainer, module = quiet(max_epochs=1), Regression()
    assert seed_everything(3, workers=True) == 3
    drawn = torch.rand(())
    seed_everything(3)
    assert torch.equal(drawn, torch.rand(()))
    with pytest.raises(ConfigurationError, match=r"workers=False: the workers of a DataLoader always have seeds"):
        seed_everything(3, workers=False)
    trainer.fit(model=module, train_dataloaders=loader(), val_dataloaders=loader())
    found = float(trainer.callback_metrics["error"])
    (validated,) = trainer.validate(model=module, dataloaders=loader())
    (tested,) = trainer.test(model=module, dataloaders=loader())
    assert validated["error"] == tested["test_error"] == pytest.approx(found)
    assert len(trainer.predict(model=module, dataloaders=loader())) == len(loader())
