"""``torch_hal`` and ``core``, the two import names, and a project that has a package ``core`` of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from installing import files_of, lay_down

ROOT = Path(__file__).parents[2]
STARTING = [ROOT / "tests" / "starting"] if "FORK_SERVERS" in os.environ else []
"""What makes processes that train start fast, where the session of tests does (scripts in ``tests/…/scripts``)."""

SAME = """
import torch_hal
import core
from torch_hal.strategies import DDPStrategy
from torch_hal import Trainer, precisions
import torch_hal.discovery.scan
import core.discovery.scan

assert Trainer is core.Trainer and torch_hal.Runtime is core.Runtime
assert torch_hal.strategies is core.strategies and DDPStrategy is core.strategies.DDPStrategy
assert torch_hal.discovery.scan is core.discovery.scan and precisions is core.precisions
assert torch_hal.discovery.scan.__name__ == core.discovery.scan.__spec__.name == "torch_hal.discovery.scan"
assert {*core.__all__} <= {*dir(torch_hal)} and torch_hal.__all__ == core.__all__
assert issubclass(torch_hal.CoreError, Exception) and core.CoreError is torch_hal.errors.CoreError
import torch_hal.callbacks, importlib
assert importlib.reload(core.callbacks) is torch_hal.callbacks
import sys
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("torch_hal")]  # asked for all
sys.path_importer_cache.clear()
import core.loggers.text_files, torch_hal.loggers
assert core.loggers.text_files is torch_hal.loggers.text_files
"""


def run(code: str, cwd: Path, *path: Path, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run code as a user's script in ``cwd`` with torch-hal installed, and ``path`` before it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CORE_", "PYTHON"))}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, [*path, ROOT]))
    script = cwd / "script.py"
    script.write_text(code)
    command = [sys.executable, *options, str(script)]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_both_names_are_the_same_objects(tmp_path: Path) -> None:
    """Every module and class is one object under both names; no module is executed twice."""
    done = run(SAME, tmp_path, options=("-W", "error"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["torch_hal", "core"])
def test_a_zip_archive(name: str, tmp_path: Path) -> None:
    """Python can import from an archive, where none of this package's other files can be read or started."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in ROOT.glob("core/**/*.py"):
            for package in ("core", "torch_hal"):
                archive.write(file, package / file.relative_to(ROOT / "core"))
    command = [sys.executable, "-S", "-c", f"import {name}"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "all.zip")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: torch-hal was imported from {tmp_path / 'all.zip'}{os.sep}"), done.stderr
    assert "Install it in a folder, as pip does" in last


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import torch_hal.no_such_module", "ModuleNotFoundError: No module named 'torch_hal.no_such_module'"),
        ("import torch_hal; torch_hal.NoSuchName", "AttributeError: module 'torch_hal' has no attribute 'NoSuchName'"),
        ("from torch_hal import NoSuchName", "ImportError: cannot import name 'NoSuchName' from 'torch_hal'"),
    ],
)
def test_what_core_does_not_have(code: str, error: str, tmp_path: Path) -> None:
    """A module or name that ``core`` does not have is Python's usual error, with the name that the user wrote."""
    assert error in run(code, tmp_path).stderr


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path) -> None:
    """A folder ``core`` without ``__init__.py`` and without modules of ours does not get in the way."""
    (tmp_path / "core").mkdir()
    done = run("from torch_hal import Trainer", tmp_path)
    assert done.returncode == 0, done.stderr


NETWORK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from {name} import Module

class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)

def loader(workers=0):
    x = torch.randn(11, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2, num_workers=workers)
"""

TRAIN = """
import sys
from {models} import Net, loader
from {name} import Trainer, seed_everything
from {name}.callbacks import ModelCheckpoint
from {name}.checkpoints import latest

def main(folder, strategy, devices, epochs, accelerator="cpu", precision="32-true", workers="0"):
    seed_everything(1)
    trainer = Trainer(accelerator=accelerator, precision=precision, devices=int(devices), strategy=strategy,
        max_epochs=int(epochs), default_root_dir=folder, callbacks=ModelCheckpoint(folder, save_last=True),
        logger=False, enable_progress_bar=False, enable_model_summary=False)
    net = Net()
    trainer.fit(net, loader(int(workers)), ckpt_path="last" if latest(folder) else None)
    if trainer.is_global_zero:
        print("weights", [value.tolist() for value in net.state_dict().values()])
        print("modules", sorted({{name.partition(".")[0] for name in sys.modules if name.endswith("trainer.trainer")}}))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def project(folder: Path, own_core: bool) -> Path:
    """The files of a project, whose models are in a package ``core`` of its own or in a module next to the script."""
    name, models = ("torch_hal", "core.models") if own_core else ("core", "models")
    package = folder / "core" if own_core else folder
    package.mkdir(parents=True)
    if own_core:
        (package / "__init__.py").write_text("SETTING = 3\n")
    (package / "models.py").write_text(NETWORK.format(name=name))
    (folder / "train.py").write_text(TRAIN.format(name=name, models=models))
    return folder


def train(folder: Path, *arguments: object, launcher: tuple[str, ...] = (), **variables: str) -> str:
    """Run the project's script; returns its last line but one, the weights."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CORE_", "PYTHON"))}
    command = [sys.executable, *launcher, "train.py", *map(str, arguments)]
    environ |= {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *STARTING))), **variables}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    weights, modules = [line for line in done.stdout.splitlines() if line.startswith(("weights", "modules"))]
    assert modules == "modules ['torch_hal']" or "own" not in folder.parts
    return weights


PROCESSES = [("single_device", 1, ()), ("ddp", 2, ()), ("ddp_spawn", 2, ()), ("ddp_fork", 2, ())]
RUN = ("-m", "torch_hal.run", "--devices", "2", "--")


@pytest.mark.slow
def test_a_project_with_a_core_of_its_own(tmp_path: Path) -> None:
    """It trains as a project without one does, and goes on from a checkpoint that was written under the other name."""
    own, other = (project(tmp_path / "tests" / name / "scripts", name == "own") for name in ("own", "other"))
    saved = tmp_path / "saved"
    first = train(other, saved, "ddp", 2, 1)
    whole = train(own, tmp_path / "whole", "ddp", 2, 2, "cpu", "32-true", 2)
    assert first != whole
    assert train(own, saved, "ddp", 2, 2) == whole


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_each_launcher_in_a_project_with_a_core_of_its_own(tmp_path: Path) -> None:
    """Processes that are started, spawned or forked train there as in a project without one."""
    own, other = project(tmp_path / "own", True), project(tmp_path / "other", False)
    expected = {devices: train(other, tmp_path / f"{devices}", "auto", devices, 1) for devices in (1, 2)}
    for strategy, devices, launcher in [*PROCESSES, ("ddp", 2, RUN)]:
        saved = tmp_path / f"{strategy} {len(launcher)}"
        assert train(own, saved, strategy, devices, 1, launcher=launcher) == expected[devices], strategy


def test_a_plugin_in_a_project_with_a_core_of_its_own(tmp_path: Path) -> None:
    """A plugin's backend works by name there, with a hook module that imports ``torch_hal``."""
    plugin = (
        "from torch_hal.hookspecs import hookimpl\n"
        "from torch_hal.specs import PrecisionSpec\n"
        "@hookimpl\n"
        "def core_precisions():\n"
        "    return [PrecisionSpec(name='acme-true', target='torch_hal_acme.precision:Acme', description='float64')]\n"
    )
    files = {
        **files_of("torch-hal-acme", "1.0", "[core.precisions]\nacme-true = torch_hal_acme.plugin\n"),
        "torch_hal_acme/__init__.py": "",
        "torch_hal_acme/plugin.py": plugin,
        "torch_hal_acme/precision.py": "from torch_hal.precisions import DoublePrecision as Acme\n",
    }
    site = lay_down(tmp_path / "site", files)
    own = project(tmp_path / "own", True)
    path = os.pathsep.join(map(str, (site, ROOT)))
    assert "weights" in train(own, tmp_path / "saved", "single_device", 1, 1, "cpu", "acme-true", PYTHONPATH=path)


def test_commands_in_a_project_with_a_core_of_its_own(tmp_path: Path) -> None:
    """``python -m torch_hal.list`` and the other verbs work in its folder; ``core`` is the project's own."""
    own = project(tmp_path / "own", True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    for verb in ("list", "explain"):
        command = [sys.executable, "-m", f"torch_hal.{verb}"]
        done = subprocess.run(command, cwd=own, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "cpu" in done.stdout
    both = run("import torch_hal, core; print(core.SETTING, torch_hal.Trainer.__module__)", own)
    assert both.stdout == "3 torch_hal.trainer.trainer\n", both.stderr
