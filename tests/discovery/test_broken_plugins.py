"""Fifteen kinds of broken plugin, each really installed: each is a row with its true cause, and all else works."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from installing import environment, files_of, pip_install, run_list, write_wheel

TIMEOUT = 8.0

PLUGIN = """\
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec

@hookimpl
def core_accelerators():
    return [AcceleratorSpec(name={name!r}, target={target!r}, detect={detect!r}, priority=90)]
"""

ACCELERATOR = """\
import torch
from core.accelerators import Accelerator

class GoodAccelerator(Accelerator):
    def is_available(self):
        return True

    def auto_device_count(self):
        return 2

    def get_parallel_devices(self, devices):
        return [torch.device("cpu") for _ in devices]

class NoAccelerator:
    pass
"""


class Kind(NamedTuple):
    """One kind of broken plugin."""

    plugin: str = ""
    """Its hook module; an empty string leaves it out."""
    target: str = "GoodAccelerator"
    detect: str | None = "def count():\n    return 0\n"
    name: str | None = None
    """The backend's name where it is not the kind's own."""
    requires: str = "torch-hal>=0.1,<1"
    twin: bool = False
    """Whether a second distribution claims the same name."""
    damage: tuple[bytes, bytes] | None = None
    """What is replaced in METADATA once it is installed, and by what."""
    plain: str = "installed"
    """The state that metadata tells."""
    probed: str = "failed"
    cause: str = ""
    """The true cause, as the listing must say it in the latest state."""


WORKING = PLUGIN

KINDS = {
    "missing_module": Kind(cause="ModuleNotFoundError: No module named 'torch_hal_missing_module'"),
    "syntax_error": Kind(plugin="def core_accelerators(:\n", cause="SyntaxError: "),
    "exception": Kind(
        plugin="raise RuntimeError('the driver is too old')\n", cause="RuntimeError: the driver is too old"
    ),
    "system_exit": Kind(plugin="import sys\nsys.exit('no licence')\n", cause="SystemExit: no licence"),
    "wrong_type": Kind(
        plugin=PLUGIN.replace("return [", "return [{}, "), cause="core_accelerators returns an object of type dict"
    ),
    "no_target": Kind(plugin=WORKING, target="Missing", cause="has no attribute 'Missing'"),
    "no_accelerator": Kind(plugin=WORKING, target="NoAccelerator", cause="NoAccelerator' is not a subclass of"),
    "needs_newer_core": Kind(
        plugin=WORKING,
        requires="torch-hal>=99",
        plain="incompatible",
        probed="incompatible",
        cause="needs torch-hal>=99; this is torch-hal ",
    ),
    "duplicate_name": Kind(
        plugin=WORKING,
        twin=True,
        plain="conflict",
        probed="conflict",
        cause="torch-hal-duplicate-name 1.0 and torch-hal-duplicate-name-twin 1.0 claim 'duplicate_name'",
    ),
    "shadows_cpu": Kind(
        plugin=WORKING, name="cpu", plain="conflict", probed="conflict", cause="'cpu' is reserved for torch-hal's own"
    ),
    "detect_hangs": Kind(
        plugin=WORKING,
        detect="import time\ndef count():\n    time.sleep(600)\n",
        cause=f"timed out after {TIMEOUT:g} s",
    ),
    "probe_segfaults": Kind(
        plugin=WORKING,
        detect="import ctypes\ndef count():\n    return ctypes.string_at(0)\n",
        cause="killed by SIGSEGV",
    ),
    "undecodable": Kind(
        plugin=WORKING,
        damage=(b"Name: torch", b"Name: t\xf6rch"),
        plain="failed",
        cause="Name in METADATA is not UTF-8",
    ),
    "empty_name": Kind(plugin=WORKING, name="", plain="failed", cause="declares the empty name ''"),
    "prints_and_changes_environ": Kind(
        plugin="import os\nprint('welcome to the vendor')\nos.environ['OMP_NUM_THREADS'] = '3'\n" + PLUGIN,
        cause="its import changes os.environ: OMP_NUM_THREADS",
    ),
}


def distribution_of(kind: str) -> str:
    return f"torch-hal-{kind.replace('_', '-')}"


def write_plugin(directory: Path, kind: str, facts: Kind, distribution: str) -> Path:
    package = distribution.replace("-", "_")
    name = kind if facts.name is None else facts.name
    entry_points = f"[core.accelerators]\n{name} = {package}.plugin\n"
    files = files_of(distribution, "1.0", entry_points, [facts.requires])
    if facts.plugin:
        detect = f"{package}.detect:count" if facts.detect else None
        target = f"{package}.accelerator:{facts.target}"
        code = facts.plugin
        if "{name!r}" in code:
            code = (
                code.replace("{name!r}", repr(name))
                .replace("{target!r}", repr(target))
                .replace("{detect!r}", repr(detect))
            )
        files |= {f"{package}/__init__.py": "", f"{package}/plugin.py": code, f"{package}/accelerator.py": ACCELERATOR}
        files |= {f"{package}/detect.py": facts.detect or ""}
    return write_wheel(directory, distribution, "1.0", files)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds, and a good plugin, installed by pip into one directory."""
    wheels = tmp_path_factory.mktemp("wheels")
    good = Kind(plugin=WORKING, detect="def count():\n    return 2\n")
    made = [write_plugin(wheels, "good", good, "torch-hal-good")]
    for kind, facts in KINDS.items():
        made.append(write_plugin(wheels, kind, facts, distribution_of(kind)))
        if facts.twin:
            made.append(write_plugin(wheels, kind, facts, distribution_of(kind) + "-twin"))
    target = pip_install(made, tmp_path_factory.mktemp("site") / "all")
    for kind, facts in KINDS.items():
        if facts.damage:
            damaged = target / f"{distribution_of(kind).replace('-', '_')}-1.0.dist-info" / "METADATA"
            damaged.write_bytes(damaged.read_bytes().replace(*facts.damage))
    return target


@pytest.fixture(scope="module")
def alone(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each kind by itself in its own directory."""
    directories = {}
    for kind in KINDS:
        package = distribution_of(kind).replace("-", "_")
        directories[kind] = tmp_path_factory.mktemp(kind)
        for name in (package, f"{package}-1.0.dist-info", f"{package}_twin", f"{package}_twin-1.0.dist-info"):
            if (installed / name).exists():
                shutil.copytree(installed / name, directories[kind] / name)
    return directories


def listing(*arguments: str, path: Path) -> tuple[dict[str, Any], int]:
    done = run_list("--json", "--strict", *arguments, environ=environment(path))
    assert done.stderr == ""
    return json.loads(done.stdout), done.returncode


@pytest.fixture(scope="module")
def plain(installed: Path) -> dict[str, Any]:
    found, code = listing(path=installed)
    assert code == 1
    return found


@pytest.fixture(scope="module")
def probed(installed: Path) -> dict[str, Any]:
    found, code = listing("--probe", "--timeout", str(TIMEOUT), path=installed)
    assert code == 1
    return found


def rows_of(listed: dict[str, Any], distribution: str) -> list[dict[str, Any]]:
    return [row for row in listed["backends"] if row["distribution"] == distribution]


@pytest.mark.parametrize("kind", KINDS)
def test_plain_listing_tells_what_metadata_tells(kind: str, plain: dict[str, Any]) -> None:
    """Without importing a plugin, each has one row in the state that its metadata implies, with the cause if broken."""
    (row,) = rows_of(plain, distribution_of(kind))
    assert row["state"] == KINDS[kind].plain
    assert row["reason"] == "" if row["state"] == "installed" else KINDS[kind].cause in row["reason"]


@pytest.mark.parametrize("kind", KINDS)
def test_probe_tells_the_true_cause(kind: str, probed: dict[str, Any]) -> None:
    """Probed all in one run, each is a row with its own true cause, whatever the others do to the process."""
    (row,) = rows_of(probed, distribution_of(kind))
    assert row["state"] == KINDS[kind].probed
    assert KINDS[kind].cause in row["reason"]


def test_all_others_are_fine(plain: dict[str, Any], probed: dict[str, Any]) -> None:
    """core's own backends and a good plugin are in their true state next to fifteen broken ones."""
    assert {row["state"] for row in rows_of(plain, "torch-hal")} == {"installed"}
    assert {row["state"] for row in rows_of(probed, "torch-hal")} == {"available", "unavailable"}
    (good,) = rows_of(probed, "torch-hal-good")
    assert (good["state"], good["devices"]) == ("available", 2)
    (cpu,) = (row for row in rows_of(probed, "torch-hal") if (row["kind"], row["name"]) == ("accelerator", "cpu"))
    assert cpu["state"] == "available"


@pytest.mark.parametrize("kind", KINDS)
def test_plain_listing_next_to_one(kind: str, alone: dict[str, Path]) -> None:
    """Next to each broken plugin alone the listing works, and --strict fails exactly where metadata shows it broken."""
    found, code = listing(path=alone[kind])
    assert code == (KINDS[kind].plain != "installed")
    assert {row["state"] for row in rows_of(found, "torch-hal")} == {"installed"}


def test_verbose_shows_tracebacks(installed: Path) -> None:
    """--verbose imports the plugins in another process and shows why each is broken, with the traceback."""
    done = run_list("--verbose", "--timeout", str(TIMEOUT), environ=environment(installed))
    assert (done.returncode, done.stderr) == (0, "")
    assert "raise RuntimeError('the driver is too old')" in done.stdout
    assert "welcome to the vendor" in done.stdout
    assert "SystemExit: no licence" in done.stdout


def test_table_is_readable_in_80_columns(installed: Path) -> None:
    """No line of the plain table is wider than 80 columns, causes included."""
    done = run_list(environ=environment(installed))
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "needs torch-hal>=99" in done.stdout


TRAINING = """\
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from core import Module, Trainer

class Model(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), batch_size=4)
for accelerator in ("cpu", "auto"):
    model = Model()
    before = model.layer.weight.detach().clone()
    Trainer(
        accelerator=accelerator, devices=1, max_epochs=1, enable_progress_bar=False, enable_checkpointing=False,
        logger=False,
        default_root_dir=sys.argv[1],
    ).fit(model, data)
    assert not torch.equal(before, model.layer.weight.detach().cpu())
    print("trained with", accelerator)
"""


BESIDE_EACH = """\
import os
import sys
import traceback
import torch._dynamo  # torch and what an optimizer imports of it, once for all processes that are forked from here

for site in sys.argv[2:]:
    if not os.fork():
        os.dup2(os.open(site + ".printed", os.O_WRONLY | os.O_CREAT), sys.stdout.fileno())
        os.environ["PYTHONPATH"] = site
        sys.path.insert(0, site)
        training, sys.argv = sys.argv[1], ["training", os.path.dirname(site)]
        code = 1
        try:
            exec(training, {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    _, status = os.wait()
    print(os.path.basename(site), os.waitstatus_to_exitcode(status), flush=True)
"""


def check_trained(printed: str) -> None:
    assert "trained with cpu" in printed
    assert "trained with auto" in printed
    assert "welcome to the vendor" not in printed


def test_training_on_cpu_works_next_to_all(installed: Path, tmp_path: Path) -> None:
    """Training works on the CPU by name and by ``auto`` next to all broken plugins."""
    path = tmp_path / "site"
    shutil.copytree(installed, path)
    for good in path.glob("torch_hal_good*"):  # it offers two devices, which are not there
        shutil.rmtree(good)
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    done = subprocess.run(command, env=environment(path), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    check_trained(done.stdout)


@pytest.mark.exhaustive
def test_training_on_cpu_works_next_to_each(alone: dict[str, Path], tmp_path: Path) -> None:
    """So it does next to each alone, in a process that has imported nothing of core before."""
    for kind, path in alone.items():
        shutil.copytree(path, tmp_path / kind)
    command = [sys.executable, "-c", BESIDE_EACH, TRAINING, *(str(tmp_path / kind) for kind in alone)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    printed = {kind: (tmp_path / f"{kind}.printed").read_text() for kind in alone}
    assert dict(line.split() for line in done.stdout.splitlines()) == dict.fromkeys(alone, "0"), (done.stderr, printed)
    for kind in alone:
        check_trained(printed[kind])
