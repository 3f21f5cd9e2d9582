"""The loggers on other libraries: what the library itself reads is what was logged."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from declared import PREFIX

from core.errors import BackendError, WrongTypeError
from core.loggers import CometLogger, MLFlowLogger, TensorBoardLogger, WandbLogger


def needs(package: str) -> pytest.MarkDecorator:
    """Skip by declaration where ``package`` is not installed."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{PREFIX}{package} is not installed")


def events(folder: str) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(folder, size_guidance={"scalars": 0, "images": 0}).Reload()


@needs("tensorboard")
def test_tensorboard(tmp_path: Path) -> None:
    """TensorBoard reads the scalars, the text and the images; without close, too."""
    logger = TensorBoardLogger(tmp_path, name="p", version="")
    logger.log_hyperparams({"lr": 0.5, "layers": [1, 2], "inner": {"x": None}})
    for step in (0, 2, 1):
        logger.log_metrics({"loss": torch.tensor(step / 4), "note": "good"}, step)
    logger.log_metrics({"both": {"train": 1.0, "val": 2.0, "not yet": None}, "not yet": None}, 3)
    logger.log_images({"samples": np.zeros((2, 4, 4, 3), "uint8")}, 3)
    logger.save()
    read = events(logger.log_dir)
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(0, 0.0), (2, 0.5), (1, 0.25)]
    assert read.Images("samples")[0].step == 3
    assert {"note/text_summary", "_hparams_/session_start_info"} <= {*read.Tags()["tensors"], *read.summary_metadata}
    assert events(os.path.join(logger.log_dir, "both_val")).Scalars("both")[0].value == 2.0
    assert read.Tags()["scalars"] == ["loss"]
    assert not [path for path in os.listdir(logger.log_dir) if "not yet" in path]
    assert json.loads(Path(logger.log_dir, "hparams.json").read_text())["layers"] == [1, 2]
    assert logger.tracker is logger.writer is logger.experiment
    logger.finish()


@needs("tensorboard")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1.0], r"'bad'\].*type list"),  # as scheduler.get_last_lr() returns
        (torch.ones(2), r"'bad'\].*type Tensor"),
        ({"inner": "text"}, r"'bad/inner'\].*not 'text'"),
    ],
)
def test_a_value_that_tensorboard_cannot_write(value: Any, said: str, tmp_path: Path) -> None:
    """The error names the metric, and the metrics next to it are not written either."""
    logger = TensorBoardLogger(tmp_path)
    with pytest.raises(WrongTypeError, match=said):
        logger.log_metrics({"loss": 0.5, "bad": value}, 1)
    logger.log_metrics({"loss": 0.25}, 2)
    logger.finish()
    assert [event.step for event in events(logger.log_dir).Scalars("loss")] == [2]


@needs("wandb")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline run of W&B has the values, the configuration and the images."""
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(name="first", save_dir=tmp_path, offline=True, project="p")
    logger.log_hyperparams({"lr": 0.5})
    logger.log_metrics({"loss": torch.tensor(0.25)}, step=0)
    logger.log_metrics({"image": wandb.Image(np.zeros((4, 4, 3), "uint8"))}, step=1)
    logger.log_images({"images": [np.zeros((4, 4, 3), "uint8")]}, step=2)
    logger.log_table("t", ["a"], [[1]], step=3)
    run = logger.experiment
    assert (run.project, run.name, dict(run.config)["lr"]) == ("p", "first", 0.5)
    assert logger.version == run.id
    assert dict(run.summary)["loss"] == 0.25
    logger.finish()
    assert list(tmp_path.rglob("run-*.wandb"))
    assert wandb.run is None
    wandb.teardown()


@needs("wandb")
def test_wandb_keeps_values_of_earlier_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trainer logs evaluation by batch, whose steps begin at 0, between steps of training; none is lost."""
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="p")
    for step, name in ((5, "a"), (2, "b"), (5, "c"), (6, "d")):
        logger.log_metrics({name: float(step)}, step=step)
    found = dict(logger.experiment.summary)
    logger.finish()
    wandb.teardown()
    assert {name: found[name] for name in "abcd"} == {"a": 5.0, "b": 2.0, "c": 5.0, "d": 6.0}
    assert found["trainer/global_step"] == 6


@needs("mlflow")
@pytest.mark.filterwarnings("default")  # the library's own
def test_mlflow(tmp_path: Path) -> None:
    """MLflow's own client reads metrics, parameters and the status."""
    import mlflow

    logger = MLFlowLogger("p", run_name="first", save_dir=tmp_path)
    logger.log_hyperparams({"lr": 0.5, "inner": {"x": "y" * 1000}, **{f"p{i}": i for i in range(150)}})
    logger.log_metrics({"loss": torch.tensor(0.25)}, step=0)
    logger.log_metrics({"loss": 0.5, "inner": {"x": 1}, "not yet": None}, step=1)
    with pytest.raises(WrongTypeError, match="'note'"):
        logger.log_metrics({"note": "text"})
    run_id = logger.version
    assert mlflow.active_run().info.run_id == run_id
    logger.finish("failed")
    run = mlflow.MlflowClient().get_run(run_id)
    assert (run.info.run_name, run.info.status) == ("first", "FAILED")
    assert run.data.metrics == {"loss": 0.5, "inner/x": 1.0}
    assert run.data.params["lr"] == "0.5"
    assert len(run.data.params["inner/x"]) == 500
    assert len(run.data.params) == 152
    assert [metric.value for metric in mlflow.MlflowClient().get_metric_history(run_id, "loss")] == [0.25, 0.5]


@needs("comet_ml")
@pytest.mark.filterwarnings("default")  # the library's own
def test_comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline experiment of Comet is written."""
    import comet_ml

    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path))
    config = comet_ml.ExperimentConfig(offline_directory=str(tmp_path))
    logger = CometLogger("p", online=False, api_key="none", experiment_config=config)
    logger.log_hyperparams({"lr": 0.5})
    logger.log_metrics({"loss": torch.tensor(0.25), "note": "good"}, step=1)
    assert logger.experiment.get_metric("loss") == 0.25
    assert logger.version == logger.experiment.get_key()
    logger.finish()
    assert list(tmp_path.glob("*.zip"))


@pytest.mark.parametrize(
    ("logger", "install"),
    [
        (TensorBoardLogger(".", version=""), "tensorboard"),
        (WandbLogger(), "wandb"),
        (MLFlowLogger(), "mlflow"),
        (CometLogger(), "comet-ml"),
    ],
)
def test_a_missing_package_is_an_error_with_its_pip_line(
    logger: Any, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install."""

    def not_found(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {logger.package!r}", name=logger.package)

    monkeypatch.setattr("core.loggers.values.importlib.import_module", not_found)
    with pytest.raises(BackendError, match=f"pip install {install}$"):
        logger.log_metrics({"x": 1})


@needs("tensorboard")
@pytest.mark.parametrize(("metrics", "names"), [({"hp/loss": 0.5}, ["hp/loss"]), (0.5, ["hp_metric"])])
def test_metrics_next_to_hyperparameters(tmp_path: Path, metrics: Any, names: list[str]) -> None:
    """TensorBoard's table gets a column for each; they are scalars of the step too."""
    logger = TensorBoardLogger(tmp_path)
    logger.log_hyperparams({"width": 3}, metrics, step=2)
    logger.finish()
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    read = events(logger.log_dir)
    assert [(event.step, event.value) for event in read.Scalars(names[0])] == [(2, 0.5)]
    content = read.summary_metadata["_hparams_/experiment"].plugin_data.content
    columns = HParamsPluginData.FromString(content).experiment.metric_infos
    assert [column.name.tag for column in columns] == names
