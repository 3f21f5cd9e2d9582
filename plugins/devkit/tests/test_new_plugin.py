"""``python -m core.new_plugin``: what it writes is a package that works, before anything is filled in."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
from python_processes import run_python
from torch_hal_devkit.new_plugin import write_package

from torch_hal.errors import ConfigurationError
from torch_hal.kinds import KINDS

NAMES = {
    "accelerator": "acme",
    "strategy": "acme_ring",
    "precision": "acme8-mixed",
    "checkpoint_io": "acme-tar",
    "cluster_environment": "acmeq",
}
"""By kind, the name that its package is written for; the classes' names come from it."""
LONGEST = "a23456789_123456789-2345678901"
ONE_AND_SLOWER = [pytest.param(kind, marks=[] if kind == "accelerator" else pytest.mark.slow) for kind in NAMES]
"""One package is tested each time, the others with the slow tests."""
IN_CI = [
    pytest.param(*one.values, marks=pytest.mark.exhaustive) if one.values == ("strategy",) else one
    for one in ONE_AND_SLOWER
]
"""A strategy's runs take minutes; as it is written it is DDP, which passes in test_core_backends.py."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By kind, a package as it is written."""
    folder = tmp_path_factory.mktemp("written")
    return {kind: write_package(name, kind, folder / kind) for kind, name in NAMES.items()}


@pytest.fixture(scope="module")
def installed(written: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for ``PYTHONPATH`` with all of them, as an installer leaves them."""
    target = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    run_python("-m", "pip", "install", *options, "--target", target, *written.values(), cwd=target)
    return os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize("kind", IN_CI)
def test_it_passes_the_kit(written: dict[str, Path], installed: str, kind: str) -> None:
    """Its own tests pass where it is installed: tiers T0 and T1 of the kit, without hardware."""
    env = {"PYTHONPATH": installed}
    output = run_python("-m", "pytest", "-p", "no:cacheprovider", cwd=written[kind], env=env).stdout
    assert " passed" in output
    (line,) = (line for line in output.splitlines() if line.startswith("conformance of "))
    assert "T0, T1" in line
    if kind == "cluster_environment":  # the scaffold says which variables its cluster sets
        assert "not run" not in line


def test_they_are_listed_and_used(installed: str, tmp_path: Path) -> None:
    """Each is listed under its name; the accelerator has no devices yet, and the others train as they are."""
    env = {"PYTHONPATH": installed}
    output = run_python("-m", "core.list", "--probe", cwd=tmp_path, env=env).stdout
    rows = {columns[0]: line for line in output.splitlines() if (columns := line.split())}
    assert "unavailable" in output[output.index("acme ") :].partition("\n\n")[0]
    assert {"acme", *NAMES.values()} <= set(rows)
    code = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from core import Module, Trainer

class Fitted(Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

options = dict(accelerator="cpu", devices=1, strategy="acme_ring", precision="acme8-mixed", checkpoint_io="acme-tar")
options |= dict(max_epochs=2, enable_progress_bar=False)
loader = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4)
first, resumed = Fitted(), Fitted()
trainer = Trainer(**options)
trainer.fit(first, loader)
Trainer(**{**options, "max_epochs": 3}).fit(resumed, loader, ckpt_path=trainer.checkpoint_callback.best_model_path)
with torch.no_grad():
    outputs = [float(module.net(torch.ones(2)).abs()) for module in (first, resumed)]
assert outputs[1] < outputs[0] / 2, outputs  # each step leaves 0.4 of it
"""
    run_python("-c", code, warnings="error", cwd=tmp_path, env=env)
    environment = """
from torch_hal_acmeq.environment import AcmeqEnvironment
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ADDRESS", "PORT")
environ = dict(zip([f"ACMEQ_{name}" for name in names], "5 8 1 4 host 29".split()))
assert AcmeqEnvironment.detect(environ) and not AcmeqEnvironment.detect({})
it = AcmeqEnvironment(environ)
assert (it.global_rank, it.node_rank, it.num_nodes, it.main_address, it.main_port) == (5, 1, 2, "host", 29)
"""
    run_python("-c", environment, cwd=tmp_path, env=env)


@pytest.mark.parametrize("kind", ONE_AND_SLOWER)
def test_its_types_are_strict(written: dict[str, Path], kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """``mypy`` finds nothing, with the strict settings that are written too."""
    cache = tmp_path_factory.getbasetemp() / "mypy"
    run_python("-m", "mypy", "--cache-dir", cache, cwd=written[kind])


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is not installed here")
def test_its_style(written: dict[str, Path], tmp_path: Path) -> None:
    """``ruff`` finds nothing to say and nothing to format, also with the longest name."""
    folders = [*written.values(), *(write_package(LONGEST, kind, tmp_path / kind) for kind in KINDS)]
    for command in (["check"], ["format", "--check"]):
        run_python("-m", "ruff", *command, "--no-cache", *folders, cwd=tmp_path)


def test_what_is_to_be_filled_in_is_marked(written: dict[str, Path]) -> None:
    """Each package has its marks, nothing that merely raises, and nothing of the templates' own."""
    for folder in written.values():
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        text = "\n".join(path.read_text("utf-8") for path in files)
        assert text.count("FILL IN") >= 2
        assert "NotImplemented" not in text
        assert not re.findall(r"\$(?!\{\{ (?:matrix|vars)\.\w+ \}\})", text.replace("```sh", ""))
        assert {"README.md", "CHANGELOG.md", "pyproject.toml", "src", "tests", ".github"} == {
            path.name for path in folder.iterdir()
        }
        assert list(folder.rglob("py.typed"))


def test_the_page_for_vendors(written: dict[str, Path]) -> None:
    """Each file and each mark that docs/vendors.md speaks of is there."""
    page = (Path(__file__).parents[3] / "docs" / "vendors.md").read_text("utf-8")
    named = re.findall(r"^\| `([\w./]+)` \|", page.partition("## 2.")[0], re.MULTILINE)
    assert len(named) == 5
    for name in named:
        assert (written["accelerator"] / name).is_file(), name
    code = "".join(path.read_text("utf-8") for path in written["accelerator"].rglob("src/*/*.py"))
    for name in ("count", "import_backend", "DEVICE_TYPE", "get_parallel_devices", "get_device_stats", "unsupported"):
        assert name in page
        assert name in code


def test_the_commands_of_the_page_for_vendors(tmp_path: Path) -> None:
    """Run in order in an empty directory, the commands of docs/vendors.md print what the page shows."""
    page = (Path(__file__).parents[3] / "docs" / "vendors.md").read_text("utf-8")
    shown = [
        (command, output)
        for block in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for command, output in re.findall(r"^\$ python (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert [command for command, _ in shown] == [
        "-m core.new_plugin acme --kind accelerator",
        "-m core.list --kind accelerator",
        "-m core.list --kind accelerator --probe",
        "-m pytest",  # test_it_passes_the_kit
    ]
    site, package = tmp_path / "site", tmp_path / "torch-hal-acme"
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    for command, output in shown[:-1]:
        if package.exists() and not site.exists():  # as installed by pip, without an index
            options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
            run_python("-m", "pip", "install", *options, "--target", site, package, cwd=tmp_path)
        done = run_python(*command.split(), cwd=tmp_path, env={"PYTHONPATH": path})
        assert done.stdout == output, command


BAD_NAMES = ["", "Acme", "acme!", "9acme", "acme-", "a--b", "../acme", "auto", "acmé", "a" * 31, "a b"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    """Such a name is refused, by what was given and what is valid, and nothing is written."""
    with pytest.raises(ConfigurationError, match=r"name=.*is not a valid name\. Use lower-case"):
        write_package(name, directory=tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "name"), [("accelerator", "cpu"), ("strategy", "ddp"), ("checkpoint_io", "torch")])
def test_names_of_torch_hal(kind: str, name: str, tmp_path: Path) -> None:
    """A name that torch-hal keeps for its own backend of that kind is refused; of another kind it can be had."""
    with pytest.raises(ConfigurationError, match=f"name='{name}': torch-hal has"):
        write_package(name, kind, tmp_path / "new")
    assert write_package(name, "precision", tmp_path / "new").exists()


def test_kinds_and_folders_that_are_refused(tmp_path: Path) -> None:
    """A kind that is none, a folder that is there, and one that cannot be made."""
    with pytest.raises(ConfigurationError, match="kind='logger'"):
        write_package("acme", "logger", tmp_path / "new")
    with pytest.raises(ConfigurationError, match="already exists"):
        write_package("acme", directory=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_package("acme", directory=tmp_path / "file" / "new")


def test_the_command_line(tmp_path: Path) -> None:
    """It writes torch-hal-NAME, says what comes next, imports no torch, and exits with 2 when refused."""
    command = ("-X", "importtime", "-m", "core.new_plugin", "acme", "--kind", "precision")
    done = run_python(*command, cwd=tmp_path)
    assert (tmp_path / "torch-hal-acme" / "src" / "torch_hal_acme" / "precision.py").is_file()
    assert "cd torch-hal-acme\n" in done.stdout
    assert "| torch\n" not in done.stderr
    for arguments in (["acme"], ["Acme"], ["acme", "--kind", "logger"], []):
        done = run_python("-m", "core.new_plugin", *arguments, cwd=tmp_path, expect=2)
        assert done.stderr
        assert not done.stdout
