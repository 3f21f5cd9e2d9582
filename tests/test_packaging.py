"""What is built from this project: its content, and that it works where nothing else of the project is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

from core.kinds import INTERFACE, INTERFACES

ROOT = Path(__file__).parents[1]
SCRIPT = Path(__file__).parent / "scripts" / "train_from_wheel.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
TEMPLATE = ROOT / "plugins/devkit/src/torch_hal_devkit/new_plugin/templates/common/pyproject.toml.txt"


class Built(NamedTuple):
    """What ``python -m build`` leaves."""

    sdist: Path
    wheel: Path


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """The standard output of a command that must succeed, and sees nothing of the project but what is installed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CORE_"))}
    result = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An sdist of this project, and the wheel made from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], cwd=out)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def python(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that holds the wheel and nothing else."""
    environment = tmp_path_factory.mktemp("fresh") / "environment"
    run([sys.executable, "-m", "venv", "--without-pip", environment], cwd=built.wheel.parent)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", built.wheel], cwd=built.wheel.parent)
    return python


def package_files() -> set[str]:
    """Every file of the package in this source tree."""
    files = [file for file in (ROOT / "core").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    return {file.relative_to(ROOT).as_posix() for file in files}


def test_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    """The wheel holds the files of core/ under both names, type markers and licence included, and its own metadata."""
    info = f"torch_hal-{PROJECT['version']}.dist-info"
    metadata = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    with zipfile.ZipFile(built.wheel) as wheel:
        both = {f"{name}{file.removeprefix('core')}" for file in package_files() for name in ("core", "torch_hal")}
        assert {*wheel.namelist()} == both | metadata
        assert {"core/py.typed", "torch_hal/py.typed"} <= {*wheel.namelist()}
        assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_sdist_holds_what_the_wheel_is_built_from(built: Built) -> None:
    """The sdist's files are those of core/, and what describes and builds the project."""
    stem = f"torch_hal-{PROJECT['version']}"
    # hatchling adds .gitignore to every sdist.
    others = {"CHANGELOG.md", "LICENSE", "hatch_build.py", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    with tarfile.open(built.sdist) as sdist:
        assert {member.name for member in sdist if member.isfile()} == {
            f"{stem}/{name}" for name in package_files() | others
        }


def test_metadata_says_what_it_is_and_needs(built: Built) -> None:
    """Name, licence, Python and dependencies are what the documents promise."""
    with zipfile.ZipFile(built.wheel) as wheel:
        text = wheel.read(f"torch_hal-{PROJECT['version']}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert metadata["Name"] == "torch-hal"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {line.partition(">")[0] for line in required}
    assert names == {"torch", "pluggy", "attrs", "packaging", "importlib-metadata"}
    assert {"testing", "progress", *(plugin.name for plugin in PLUGINS)} <= {*metadata.get_all("Provides-Extra", [])}
    assert "OS Independent" not in text  # only systems that were tried are claimed
    testing = [line for line in metadata.get_all("Requires-Dist", []) if re.search(r"extra == .testing.", line)]
    assert [line.partition("<")[0] for line in testing] == ["torch-hal-devkit"]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_plugin_declares_its_license_file(plugin: Path) -> None:
    """Each plugin's folder has the project's licence, and its wheel takes it from there."""
    project = tomllib.loads((plugin / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license-files"] == ["LICENSE"]
    assert (plugin / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_a_plugins_wheel_holds_its_package_and_the_license(tmp_path: Path) -> None:
    """A plugin's wheel, as pip builds it, has each file of the package, templates too, and the licence."""
    plugin = ROOT / "plugins" / "devkit"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index")
    run([*pip, "--no-build-isolation", "--wheel-dir", tmp_path, plugin], cwd=tmp_path)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
        files = [file for file in plugin.glob("src/**/*") if file.is_file() and file.suffix != ".pyc"]
        assert {file.relative_to(plugin / "src").as_posix() for file in files} <= {*wheel.namelist()}


def test_listing_of_the_installed_wheel_is_the_documented_one(python: Path, tmp_path: Path) -> None:
    """In an environment with the wheel alone, without torch even, the listing is the one in the documentation."""
    table = run([python, "-m", "core.list"], cwd=tmp_path)
    assert f"```console\n$ python -m core.list\n{table}```\n" in (ROOT / "docs" / "commands.md").read_text("utf-8")


def test_the_command_works_next_to_a_core_of_the_users_own(python: Path, tmp_path: Path) -> None:
    """In a directory with its own ``core``, the installed ``torch-hal`` works; ``python -m core`` is theirs."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("raise SystemExit('not torch-hal')\n")
    command = python.with_name("torch-hal")
    assert run([command, "list"], cwd=tmp_path) == run([python, "-m", "core.list"], cwd=python.parent)
    versions = run([command, "--version"], cwd=tmp_path).splitlines()
    assert versions[:2] == [f"torch-hal {PROJECT['version']}", "torch is not installed"]
    # Python finds the user's core first here; nothing of ours runs.
    shadowed = subprocess.run([python, "-m", "core.list"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shadowed.returncode == 1
    assert "not torch-hal" in shadowed.stderr


def test_installed_wheel_trains(python: Path, tmp_path: Path) -> None:
    """A script somewhere else trains on two processes with the installed wheel."""
    # Dependencies are taken from here. The editable install's finder is left behind: no .pth of that place is read.
    purelib = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=tmp_path).strip()
    (Path(purelib) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (tmp_path / "core.py").touch()
    command = python.with_name("torch-hal")
    probed = run([command, "list", "--probe", "--kind", "precision"], cwd=tmp_path)  # in a process that it starts
    assert (probed.count(" available"), probed.count("installed")) == (6, 0), probed
    plan = run([command, "explain", "--accelerator", "cpu", "--devices", "1"], cwd=tmp_path)
    assert plan.startswith(f"accelerator          cpu  [torch-hal {PROJECT['version']}]")
    (tmp_path / "core.py").unlink()
    output = run([python, SCRIPT], cwd=tmp_path)
    places = [line.removeprefix("core lies in ") for line in output.splitlines() if line.startswith("core lies in ")]
    assert [Path(place).parent for place in places] == [Path(purelib)] * 2
    assert "2 processes, the same parameters: True" in output


@pytest.mark.parametrize(
    "file", [*(folder / "pyproject.toml" for folder in PLUGINS), TEMPLATE], ids=lambda f: f.parent.name
)
def test_plugins_say_what_interface_they_are_written_for(file: Path) -> None:
    """Each plugin of this repository, and a generated one, declares the version of the interface that core has."""
    text = file.read_text("utf-8").replace("$name", "acme")
    groups = tomllib.loads(text)["project"].get("entry-points", {})
    assert [*groups.get(INTERFACES, {})] == ([str(INTERFACE)] if groups else [])
