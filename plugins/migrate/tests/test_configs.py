"""``torch-hal migrate`` on configurations in YAML: Hydra's ``_target_`` and LightningCLI's ``class_path``."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from torch_hal_migrate.__main__ import main

from torch_hal import Module
from torch_hal.callbacks import EarlyStopping, ModelCheckpoint

from .test_lightning import report

TRAINER = """\
# @package _global_
defaults:
  - _self_
  - override /data: mnist

trainer:
  _target_: lightning.pytorch.trainer.Trainer
  default_root_dir: ${paths.output_dir}
  gpus: 1
callbacks:
  model_checkpoint:
    _target_: pytorch_lightning.callbacks.ModelCheckpoint
    _convert_: all
    filename: "epoch_{epoch:03d}"
    period: 2
  own:
    _target_: src.callbacks.Trainer
    gpus: 2
logger: &logger
  - _target_: "lightning.pytorch.loggers.wandb.WandbLogger"
    project: mine
  - _target_: lightning.pytorch.loggers.neptune.NeptuneLogger
again: *logger
"""

CLI = """\
# lightning.pytorch==2.6.6
seed_everything: 42
fit:
  trainer:
    max_epochs: 3
    no_such: 1
    logger: false
    enable_progress_bar: false
    callbacks:
      - class_path: lightning.pytorch.callbacks.EarlyStopping
        init_args:
          monitor: loss
          patience: 3
      - class_path: pytorch_lightning.callbacks.ModelCheckpoint
        init_args:
          monitor: loss
          period: 3
  model:
    class_path: models.Net
    init_args: {max_epochs: 1}
"""


def found(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[str, dict[str, tuple[str, list[int], str]]]:
    """By file, for each use: state, lines, and what to write."""
    _, data = report(capsys, *paths)
    return {
        Path(file["file"]).name: {one["use"]: (one["state"], one["lines"], one["here"]) for one in file["findings"]}
        for file in data["files"]
    }


def test_targets_of_hydra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path to write for each class of Lightning's, its arguments, each by its line; other classes are not read."""
    (tmp_path / "train.yaml").write_text(TRAINER)
    uses = found(capsys, tmp_path / "train.yaml")["train.yaml"]
    assert uses == {
        "Trainer": ("works", [7], "core.Trainer"),
        "Trainer(default_root_dir=)": ("works", [8], ""),
        "Trainer(gpus=)": ("missing", [9], ""),
        "ModelCheckpoint": ("works", [12], "core.callbacks.ModelCheckpoint"),
        "ModelCheckpoint(filename=)": ("works", [14], ""),
        "ModelCheckpoint(period=)": ("missing", [15], ""),
        "WandbLogger": ("differs", [20], "core.loggers.WandbLogger"),
        "NeptuneLogger": ("missing", [22], ""),
    }


def test_the_report_of_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The remedies are those for scripts, and so is the exit code."""
    (tmp_path / "train.yml").write_text(TRAINER)
    assert main([str(tmp_path / "train.yml")]) == 1
    text = capsys.readouterr().out
    assert re.search(r"\n +7  Trainer +core\.Trainer\n", text)
    assert re.search(r"\n +9  Trainer\(gpus=\) +Set accelerator='gpu' and devices=", text)
    assert re.search(r"\n +15  ModelCheckpoint\(period=\) +Set every_n_epochs=\.\n", text)
    (tmp_path / "train.yml").write_text("_target_: lightning.Trainer\nmax_epochs: 3\n")
    assert main([str(tmp_path)]) == 0


def test_a_file_that_adds_to_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments in a file of Hydra's are those of the class that a file in its ``defaults`` names."""
    (tmp_path / "default.yaml").write_text("_target_: lightning.Trainer\nmax_epochs: 3\n")
    (tmp_path / "ddp.yaml").write_text("defaults:\n  - default\n  - missing\n\nstrategy: ddp\nnum_processes: 4\n")
    assert found(capsys, tmp_path)["ddp.yaml"] == {
        "Trainer(strategy=)": ("works", [5], ""),
        "Trainer(num_processes=)": ("missing", [6], ""),
    }


def test_class_paths_of_lightningcli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Classes with their ``init_args``, and the arguments in ``trainer:``, also within a subcommand."""
    (tmp_path / "config.yaml").write_text(CLI)
    uses = found(capsys, tmp_path)["config.yaml"]
    assert uses["EarlyStopping"][:2] == ("differs", [10])
    assert uses["ModelCheckpoint"] == ("works", [14], "core.callbacks.ModelCheckpoint")
    assert uses["ModelCheckpoint(period=)"] == ("missing", [17], "")
    assert uses["Trainer(max_epochs=)"] == ("works", [5], "")
    assert uses["Trainer(no_such=)"] == ("missing", [6], "")
    assert not {"Trainer", "models.Net", "Net"} & uses.keys()


class Net(Module):
    def __init__(self, max_epochs: int = 1) -> None:
        super().__init__()


def test_a_rewritten_configuration_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the paths that the report gives, and without what it calls missing, core's CLI makes what it describes."""
    cli = pytest.importorskip("torch_hal.cli", exc_type=ImportError)
    text = CLI.replace("    no_such: 1\n", "").replace("          period: 3\n", "").replace("models.", f"{__name__}.")
    (tmp_path / "config.yaml").write_text(text)
    for name, (_, _, here) in found(capsys, tmp_path)["config.yaml"].items():
        if here.startswith("core."):
            text = re.sub(rf"[a-z._]+\.{name}\b", here, text)
    assert "lightning.callbacks" not in text
    seed, _, of_fit = text.partition("fit:\n")
    (tmp_path / "config.yaml").write_text(seed + dedent(of_fit))
    made = cli.CLI(run=False, args=["--config", str(tmp_path / "config.yaml")])
    assert made.trainer.max_epochs == 3
    kinds = {type(one): one for one in made.trainer.callbacks}
    assert (kinds[EarlyStopping].patience, kinds[ModelCheckpoint].monitor) == (3, "loss")


def test_the_trainer_of_a_project_with_lightningcli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``trainer:`` holds the Trainer's arguments where a script uses LightningCLI; elsewhere it may be anything."""
    (tmp_path / "short.yaml").write_text("trainer:\n  gpus: 1\n")
    assert found(capsys, tmp_path) == {}
    (tmp_path / "main.py").write_text("from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n")
    assert found(capsys, tmp_path)["short.yaml"] == {"Trainer(gpus=)": ("missing", [2], "")}


def test_accelerates_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its path and its arguments."""
    (tmp_path / "run.yaml").write_text(
        "_target_: accelerate.Accelerator\nmixed_precision: fp16\nmegatron_lm_plugin: x\n"
    )
    assert found(capsys, tmp_path)["run.yaml"] == {
        "Accelerator": ("works", [1], "core.Runtime"),
        "Accelerator(mixed_precision=)": ("works", [2], ""),
        "Accelerator(megatron_lm_plugin=)": ("missing", [3], ""),
    }


def test_configurations_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that names nothing of these libraries is left out; tags of other programs are no error."""
    (tmp_path / "ci.yaml").write_text("trainer: [1, {a: b}]\nx: !include other.yaml\n---\n- 3\n")
    (tmp_path / "template.yaml").write_text("{% if x %}: [\n")
    (tmp_path / "empty.yml").write_text("")
    assert found(capsys, tmp_path) == {}


@pytest.mark.parametrize(("content", "said"), [(b"_target_: [\n", ":2: is not YAML"), (b"\xff", ": is not YAML")])
def test_what_is_no_yaml_is_an_error(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, with the file's name and line."""
    (tmp_path / "bad.yaml").write_bytes(content)
    assert main([str(tmp_path / "bad.yaml")]) == 2
    assert f"bad.yaml{said}" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["core.Trainer", "core.callbacks.ModelCheckpoint", "core.loggers.WandbLogger"])
def test_paths_are_those_of_classes(path: str) -> None:
    """As Hydra finds them: import the module, read the attribute."""
    module, _, name = path.rpartition(".")
    kind: Any = getattr(importlib.import_module(module), name)
    assert kind.__name__ == name
