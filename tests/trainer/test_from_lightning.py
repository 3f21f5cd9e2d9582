"""What scripts of Lightning's pass: objects of its own classes, data sets, files of hyperparameters."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

import core
from core import Callback, DataModule, Module, Trainer, seed_everything
from core.callbacks import LambdaCallback, TQDMProgressBar
from core.errors import CheckpointError, ConfigurationError, UnknownNameError, WrongTypeError
from core.loggers import CSVLogger
from core.trainer import STEP_OUTPUT

from .regression import Regression, assert_same, dataset, loader, quiet


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


class Annotated(Regression):
    """With the type of Lightning's scripts; a subclass returns each of its kinds."""

    def training_step(self, batch: Any, batch_idx: int) -> STEP_OUTPUT:
        loss = super().training_step(batch, batch_idx)
        return (loss, {"loss": loss}, None)[batch_idx % 3]


def test_the_type_of_a_steps_output() -> None:
    """``STEP_OUTPUT`` is a tensor, a mapping or ``None``, and a hook gets what the step returned."""
    seen: list[STEP_OUTPUT] = []
    watch = LambdaCallback(on_train_batch_end=lambda trainer, net, outputs, batch, index: seen.append(outputs))
    quiet(max_epochs=1, limit_train_batches=3, callbacks=[watch]).fit(Annotated(), loader())
    kinds = tuple(get_origin(kind) or kind for kind in get_args(STEP_OUTPUT))
    assert [isinstance(output, kinds) for output in (*seen, 1)] == [True, True, True, False]
    assert [type(output) for output in seen] == [torch.Tensor, dict, type(None)]


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


def test_values_that_mean_the_default() -> None:
    """No seed is 0 in every process; a clipping value of 0 clips nothing; names may be in capitals."""
    assert seed_everything() == 0
    drawn = torch.rand(())
    seed_everything(0)
    assert torch.equal(drawn, torch.rand(()))

    def norm(value: Any) -> float:
        norms: list[float] = []

        class Steep(Regression):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return 100 * super().training_step(batch, batch_idx)

            def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
                super().optimizer_step(epoch, batch_idx, optimizer, closure)
                norms.append(
                    float(nn.utils.get_total_norm([one.grad for one in self.parameters() if one.grad is not None]))
                )

        torch.manual_seed(1)
        trainer = quiet(max_steps=1, gradient_clip_val=value)
        trainer.fit(Steep(), loader())
        return norms[0]

    assert norm(0) == norm(0.0) == norm(None) > 10 > norm(0.5) == pytest.approx(0.5)
    plan = Trainer(accelerator="CPU", devices=1, strategy="DDP", precision="BF16-mixed").plan
    assert (plan.accelerator.name, plan.strategy.name, plan.precision.name) == ("cpu", "ddp", "bf16-mixed")


@pytest.mark.parametrize(("name", "said"), [("DPP", "Did you mean 'ddp'"), ("HIVEMIND2", "strategy='HIVEMIND2'")])
def test_capitals_of_no_name(name: str, said: str) -> None:
    """The error shows what was written."""
    with pytest.raises(UnknownNameError, match=said):
        quiet(strategy=name)


class ByName(Callback):
    """Calls the hooks of its base class as Lightning's scripts do: by name, and with the number of the loader."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        super().setup(trainer=trainer, pl_module=pl_module, stage=stage)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_start(trainer=trainer, pl_module=pl_module)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        super().on_validation_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        self.seen.append((batch_idx, dataloader_idx))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        super().on_exception(trainer=trainer, pl_module=pl_module, exception=exception)
        self.seen.append(exception)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict=state_dict)


HOOKS_OF_BATCHES = [f"on_{stage}_batch_{at}" for stage in ("validation", "test", "predict") for at in ("start", "end")]


def test_hooks_that_are_called_by_name() -> None:
    """Those of the base class, of core's callbacks, of the Module and the DataModule take Lightning's names."""

    class Module(Regression):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return None

        def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            super().on_validation_batch_end(outputs, batch, batch_idx, dataloader_idx)

        def on_train_end(self) -> None:
            raise ArithmeticError

    seen = ByName()
    with pytest.raises(ArithmeticError):
        quiet(max_epochs=1, callbacks=seen).fit(Module(), loader(), [loader(25), loader(50)])
    assert seen.seen[:-1] == [(0, 0), (1, 0), (0, 1)]
    assert isinstance(seen.seen[-1], ArithmeticError)

    kinds = [getattr(core.callbacks, name) for name in core.callbacks.__all__]
    kinds = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, Callback)]
    kinds.remove(LambdaCallback)  # it passes on what it gets
    for kind in kinds:
        for name in (name for name in dir(Callback) if name.startswith("on_") or name in ("setup", "teardown")):
            parameters = list(inspect.signature(getattr(kind, name)).parameters)
            assert parameters[:3] == ["self", "trainer", "pl_module"], (kind, name)
            assert name not in HOOKS_OF_BATCHES or parameters[-1] == "dataloader_idx", (kind, name)
    for name in HOOKS_OF_BATCHES:
        assert list(inspect.signature(getattr(core.Module, name)).parameters)[-1] == "dataloader_idx"
    for kind in (*kinds, DataModule):
        assert list(inspect.signature(kind.load_state_dict).parameters) == ["self", "state_dict"]


class FromIterator(Regression):
    """Takes its batches from ``dataloader_iter``."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times = times
        self.places: list[Any] = []

    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        for _ in range(self.times):
            batch, batch_idx, dataloader_idx = next(dataloader_iter)
        self.places.append((batch_idx, dataloader_idx))
        return self.loss(batch)

    def validation_step(self, dataloader_iter: Any) -> None:  # type: ignore[override]
        batch, batch_idx, dataloader_idx = next(dataloader_iter)
        self.places.append(("validated", batch_idx, dataloader_idx))
        self.log("error", self.loss(batch))


def test_steps_that_take_an_iterator() -> None:
    """Each gets its batch from it, as a step with the batch does; a second one in a step is refused."""
    modules = []
    for kind in (FromIterator, Regression):
        torch.manual_seed(3)
        modules.append(kind())
        trainer = quiet(max_epochs=1)
        trainer.fit(modules[-1], loader(), [loader(25)])
    assert_same(*modules)
    expected = [(number, 0) for number in range(7)] + [("validated", 0, 0), ("validated", 1, 0)]
    assert modules[0].places == expected
    module = FromIterator()
    quiet().validate(module, [loader(50), loader(25)])
    assert module.places == [("validated", 0, 0), ("validated", 0, 1), ("validated", 1, 1)]
    with pytest.raises(
        ConfigurationError, match=r"training_step: next\(dataloader_iter\) was called again.*accumulate"
    ):
        quiet(max_epochs=1).fit(FromIterator(times=2), loader())


def test_the_file_of_a_csv_logger(tmp_path: Path) -> None:
    """``experiment`` has Lightning's methods; what is written by them is in the same table."""
    logger = CSVLogger(tmp_path, name="p", version=0)
    logger.log_metrics({"loss": 1.5}, step=0)
    logger.experiment.log_metrics({"own": torch.tensor(2.0), "loss": 1.0}, step=3)
    logger.experiment.log_hparams({"lr": 0.1})
    logger.experiment.save()
    path = Path(logger.experiment.metrics_file_path)
    assert path == tmp_path / "p" / "version_0" / "metrics.csv"
    assert path.read_text() == "step,loss,own\n0,1.5,\n3,1.0,2.0\n"
    assert json.loads((Path(logger.experiment.log_dir) / "hparams.json").read_text()) == {"lr": 0.1}


def test_what_a_bar_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """``get_metrics`` of a subclass decides it, while it trains and when it evaluates."""

    class Own(TQDMProgressBar):
        def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
            shown = super().get_metrics(trainer, pl_module)
            shown.pop("hidden", None)
            return {**shown, "kind": type(pl_module).__name__, "v_num": 3}

    class Logs(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("seen", 0.25, prog_bar=True)
            self.log("hidden", 0.5, prog_bar=True)
            return super().training_step(batch, batch_idx)

    trainer = quiet(max_epochs=1, enable_progress_bar=True, callbacks=Own())
    trainer.fit(Logs(), loader())
    assert re.search(r"7/7 .*, kind=Logs, seen=0.25, v_num=3\b", capsys.readouterr().err)
    trainer.test(Logs(), loader(), verbose=False)
    assert "kind=Logs, v_num=3" in capsys.readouterr().err


def test_on_gpu() -> None:
    """Whether the parameters are on another device than the CPU."""
    module = Module()
    module.layer = torch.nn.Linear(2, 1)
    assert not module.on_gpu
    module.to("meta")
    assert module.on_gpu
