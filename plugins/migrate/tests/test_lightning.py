"""``torch-hal migrate`` on scripts written for Lightning."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from migrated_script import before
from torch_hal_migrate.__main__ import main

SCRIPT = """\
import lightning as L
import pytorch_lightning as pl
from lightning.pytorch.callbacks import LambdaCallback as Lambda, NoSuchCallback
from lightning.pytorch import loggers
import torch

class Base(L.LightningModule):
    def training_step(self, batch, batch_idx):
        self.log("loss", batch.mean(), prog_bar=True, no_such="x")
        self.layer(batch)
        return self.trainer.num_nodes

class Net(Base):
    def on_gpu_start(self):
        self.fabric

    def helper(self):
        return self.device

class Watch(pl.Callback):
    def on_train_end(self, trainer, pl_module):
        trainer.global_step
        pl_module.layer
        pl_module.device_mesh

class Alone:
    def to_tensorrt(self):
        self.fabric

def make(trainer: L.Trainer):
    trainer.init_module

net = Net()
runner = L.Trainer(
    max_epochs=3,
    model_registry="x",
    gpus=2,
    logger=loggers.LitLogger(),
)
runner.fit(net, datamodule=None)
net.to_tensorrt()
"""


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    """The exit code and the data that ``--json`` prints."""
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def examined(tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str) -> dict[str, tuple[str, list[int]]]:
    """State and lines of each name that a script uses."""
    (tmp_path / "script.py").write_text(script)
    _, data = report(capsys, tmp_path / "script.py")
    return {found["use"]: (found["state"], found["lines"]) for found in data["files"][0]["findings"]}


@pytest.mark.parametrize(
    ("use", "lines"),
    [
        ("LightningModule", [7]),
        ("LightningModule.training_step", [8]),
        ("self.log(prog_bar=)", [9]),
        ("LightningModule.log", [9]),
        ("LightningModule.trainer", [11]),
        ("LightningModule.device", [18]),
        ("Callback", [20]),
        ("trainer.global_step", [22]),
        ("Trainer", [30, 34]),
        ("Trainer(max_epochs=)", [35]),
        ("Trainer(logger=)", [38]),
        ("trainer.fit", [40]),
        ("trainer.fit(datamodule=)", [40]),
    ],
)
def test_what_works_is_found(use: str, lines: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Imports, arguments, methods that a class defines, and members of self, trainers, modules, by line."""
    assert examined(tmp_path, capsys, SCRIPT)[use] == ("works", lines)


def test_arguments_are_those_of_the_method_that_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of ``test``, not of ``fit``; and of ``log_dict``."""
    script = SCRIPT + "runner.test(net, ckpt_path='best')\nnet.log_dict({}, sync_dist=True)\n"
    found = examined(tmp_path, capsys, script)
    last = len(script.splitlines())
    assert found["trainer.test(ckpt_path=)"] == ("differs", [last - 1])
    assert found["self.log_dict(sync_dist=)"] == ("differs", [last])


@pytest.mark.parametrize(
    ("use", "lines"),
    [
        ("NoSuchCallback", [3]),
        ("LitLogger", [38]),
        ("self.log(no_such=)", [9]),
        ("LightningModule.on_gpu_start", [14]),
        ("LightningModule.fabric", [15]),
        ("LightningModule.device_mesh", [24]),
        ("LightningModule.to_tensorrt", [41]),
        ("trainer.init_module", [31]),
        ("Trainer(model_registry=)", [36]),
        ("Trainer(gpus=)", [37]),
    ],
)
def test_what_is_missing_is_found(
    use: str, lines: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same; also names that Lightning does not have. What the script's own classes have is not looked up."""
    assert examined(tmp_path, capsys, SCRIPT)[use] == ("missing", lines)


def test_names_of_earlier_lightnings_have_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``trainer.tune``, ``configure_sharded_model`` and what else the errors of a run know."""
    (tmp_path / "old.py").write_text(
        "import lightning.pytorch as pl\n"
        "class Net(pl.LightningModule):\n"
        "    def configure_sharded_model(self): self.trainer.lr_schedulers\n"
        "    def tng_dataloader(self): pass\n"
        "    def on_epoch_end(self): pass\n"
        "trainer = pl.Trainer()\ntrainer.tune(Net())\n"
    )
    assert main([str(tmp_path / "old.py")]) == 1
    text = capsys.readouterr().out
    assert re.search(r"3  LightningModule.configure_sharded_model +Use configure_model\.\n", text)
    assert re.search(r"3  trainer.lr_schedulers +Use trainer.lr_scheduler_configs\.\n", text)
    assert re.search(r"4  LightningModule.tng_dataloader +Use train_dataloader\.\n", text)
    assert re.search(r"5  LightningModule.on_epoch_end +Use on_train_epoch_end\.\n", text)
    assert re.search(r"7  trainer.tune +Use core.Tuner\(trainer\), or the callbacks", text)


def test_the_scripts_own_names_are_not_lightnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``layer``, ``helper`` and a class that derives from nothing of Lightning's are not in the report."""
    found = examined(tmp_path, capsys, SCRIPT)
    assert not [use for use in found if use.endswith((".layer", ".helper"))]
    nothing = "import torch\nclass A:\n    def to_tensorrt(self):\n        self.trainer.world_size\n"
    assert examined(tmp_path, capsys, nothing) == {}


def test_a_name_that_the_script_defines_is_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning has it, torch-hal neither has nor calls it, and a class of the script does; a hook is still missing."""
    script = (
        "from lightning.pytorch import LightningDataModule, LightningModule\n"
        "class Data(LightningDataModule):\n"
        "    name = 'digits'\n"
        "    def folder(self): return self.name\n"
        "class Net(LightningModule):\n"
        "    def configure_sharded_model(self): pass\n"
    )
    found = examined(tmp_path, capsys, script)
    assert {use for use, (state, _) in found.items() if state == "missing"} == {
        "LightningModule.configure_sharded_model"
    }
    found = examined(tmp_path, capsys, script.replace("    name = 'digits'\n", ""))
    assert found["LightningDataModule.name"] == ("missing", [3])


def test_arguments_of_a_callbacks_own_method_are_no_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a hook is called with the trainer and the module; other arguments are what they are said to be."""
    script = (
        "from lightning.pytorch import Callback, LightningModule\n"
        "class Watch(Callback):\n"
        "    def on_train_end(self, trainer, pl_module):\n"
        "        trainer.no_such\n"
        "    def draw(self, tensor, name):\n"
        "        tensor.detach()\n"
        "    def change(self, pl_module: LightningModule, size):\n"
        "        pl_module.eval(); pl_module.log_grad_norm\n"
    )
    found = examined(tmp_path, capsys, script)
    assert found["trainer.no_such"] == ("missing", [4])
    assert not {"trainer.detach", "trainer.eval"} & {*found}


def test_classes_in_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A base class of the script's own may be in another of the given files; a directory stands for its files."""
    (tmp_path / "a.py").write_text("import lightning.pytorch as pl\nclass Base(pl.LightningModule): pass\n")
    (tmp_path / "b.py").write_text("from a import Base\nclass Net(Base):\n    def configure_apex(self): pass\n")
    code, data = report(capsys, tmp_path)
    assert [[found["use"] for found in file["findings"]] for file in data["files"]] == [
        ["LightningModule"],
        ["LightningModule.configure_apex"],
    ]
    assert (code, data["missing"]) == (1, 1)


def test_the_report_says_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By heading: the line, the name, the import to write, and the remedy."""
    (tmp_path / "script.py").write_text(SCRIPT)
    assert main([str(tmp_path / "script.py")]) == 1
    text = capsys.readouterr().out
    works, missing = text.index("works when the import is changed:"), text.index("  missing:")
    assert re.search(r"\n +7  LightningModule +from core import Module as LightningModule\n", text[works:missing])
    assert re.search(r"\n +37  Trainer\(gpus=\) +Set accelerator='gpu' and devices=", text[missing:])
    assert re.search(r"\n +36  Trainer\(model_registry=\) +Remove it: checkpoints are files\.\n", text[missing:])


def test_all_of_the_pages_script_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0: its imports are changed, and nothing else."""
    (tmp_path / "script.py").write_text(before())
    code, data = report(capsys, tmp_path / "script.py")
    assert (code, data["missing"], data["differs"]) == (0, 0, 0)


@pytest.mark.parametrize(("content", "said"), [("def f(:\n", ":1: is not Python"), (None, "cannot be read")])
def test_what_is_no_script_is_an_error(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, with the file's name."""
    if content is not None:
        (tmp_path / "script.py").write_text(content)
    assert main([str(tmp_path / "script.py")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"script.py{said}" in err.replace(": cannot", "cannot")


def test_modules_and_the_rank_of_another_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A module of callbacks is no name that is missing; functions that Lightning tells the rank are Lightning's."""
    script = """\
import pytorch_lightning as pl
from lightning_utilities.core.rank_zero import rank_prefixed_message, rank_zero_only
from lightning_utilities.core.apply_func import apply_to_collection

stop = pl.callbacks.early_stopping.EarlyStopping("loss")
"""
    found = examined(tmp_path, capsys, script)
    assert found == {"EarlyStopping": ("differs", [5]), "rank_zero_only": ("differs", [2])}


def test_arguments_that_steps_had_in_other_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In steps and hooks that are called without them; a loader's number is given to the hooks of evaluation.

    Those with a default have it.
    """
    script = """\
from pytorch_lightning import Callback, LightningModule
class Net(LightningModule):
    def training_step(self, batch, batch_idx, optimizer_idx, hiddens): pass
    def validation_step(self, dataloader_iter): pass
    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0): pass
    def optimizer_step(self, epoch, batch_idx, optimizer, closure, on_tpu, using_native_amp, using_lbfgs): pass
    def helper(self, optimizer_idx, outputs): pass
    def test_step(self, batch, batch_idx, optimizer_idx=0): pass
class Watch(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx): pass
    def on_train_epoch_end(self, trainer, pl_module, outputs): pass
"""
    found = examined(tmp_path, capsys, script)
    assert {use: state for use, state in found.items() if "=" in use} == {
        "training_step(optimizer_idx=)": ("missing", [3]),
        "training_step(hiddens=)": ("missing", [3]),
        "validation_step(dataloader_iter=)": ("differs", [4]),
        "optimizer_step(on_tpu=)": ("missing", [6]),
        "optimizer_step(using_native_amp=)": ("missing", [6]),
        "optimizer_step(using_lbfgs=)": ("missing", [6]),
        "on_train_batch_end(dataloader_idx=)": ("missing", [10]),
        "on_train_epoch_end(outputs=)": ("missing", [11]),
    }


def test_a_hook_of_other_versions_that_a_script_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a method like others, also in a class derived from this one; a hook that torch-hal has is reported."""
    script = """\
from lightning import LightningModule
class Base(LightningModule):
    def on_train_epoch_end(self): self.on_epoch_end([])
    def on_epoch_end(self, outputs): self.on_fit_end()
    def on_fit_end(self): pass
    def on_epoch_start(self): self.on_epoch_start
class Net(Base):
    def on_epoch_end(self, outputs): pass
"""
    found = examined(tmp_path, capsys, script)
    assert found == {
        "LightningModule": ("works", [1]),
        "LightningModule.on_train_epoch_end": ("differs", [3]),
        "LightningModule.on_fit_end": ("works", [4, 5]),
        "LightningModule.on_epoch_start": ("missing", [6]),
    }


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Python 2 and bytes that are no text: each is named, the others are reported, and the exit code is 2."""
    (tmp_path / "a.py").write_text("print 'x'\n")
    (tmp_path / "b.py").write_bytes(b"name = '\xe9\xff'\n")
    (tmp_path / "d.py").write_text("from pytorch_lightning import Trainer\n")
    assert main([str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "from core import Trainer" in out
    assert ["a.py:1: is not" in err, "b.py:1: is not" in err, len(err.splitlines())] == [True, True, 2]


def test_a_notebook_is_its_code_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their lines are counted through; lines for the shell and IPython, and cells in other languages, are no code."""
    sources = [
        ["%%time\n", "!pip install lightning\n", "import lightning as L"],
        ["%%bash\n", "ls |"],
        ["L.Trainer(gpus=1)"],
    ]
    cells = [{"cell_type": "markdown", "source": ["# text"]}]
    cells += [{"cell_type": "code", "source": source} for source in sources]
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": cells}))
    _, data = report(capsys, tmp_path)
    found = {each["use"]: each["lines"] for each in data["files"][0]["findings"]}
    assert found == {"Trainer": [6], "Trainer(gpus=)": [6]}
    (tmp_path / "book.ipynb").write_text("{}")
    assert main([str(tmp_path / "book.ipynb")]) == 2


def test_another_import_hides_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the function that has it, and nowhere else."""
    script = """\
import pytorch_lightning as pl

def frame(column):
    import polars as pl
    return pl.col(column, pl.Int64)

def trainer():
    return pl.Trainer(gpus=1), pl.NoSuch
"""
    found = examined(tmp_path, capsys, script)
    assert {*found} == {"Trainer", "Trainer(gpus=)", "NoSuch"}


def test_members_of_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an object that the script makes, and of an argument with the annotation or the usual name."""
    script = """\
from lightning.fabric import Fabric

def train(other: Fabric):
    other.all_reduce(1)

def test(fabric):
    fabric.all_gather(1)

fabric = Fabric(devices=2)
with fabric.rank_zero_first():
    model, optimizer = fabric.setup(model, optimizer)
fabric.backward(loss)
fabric.save("state.ckpt", state)
fabric.print(fabric.device)
"""
    found = examined(tmp_path, capsys, script)
    assert {name: state for name, (state, _) in found.items()} == {
        "Fabric": "differs",
        "fabric.all_reduce": "missing",
        "fabric.all_gather": "missing",
        "fabric.rank_zero_first": "missing",
        "fabric.setup": "missing",
        "fabric.backward": "differs",
        "fabric.save": "differs",
        "fabric.print": "works",
        "fabric.device": "works",
    }
