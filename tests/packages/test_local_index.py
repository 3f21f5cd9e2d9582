"""torch-hal and its plugins, built, and installed by name from an index on disk, on several Pythons and torches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "scripts" / "train_from_wheel.py"
PLUGINS = {
    file.parent.name: tomllib.loads(file.read_text("utf-8"))["project"]
    for file in ROOT.glob("plugins/*/pyproject.toml")
}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
OLDEST, NEWEST = "2.6.0", "2.13.0"
"""Of torch: the oldest that pyproject.toml allows, and the newest that was tried."""
NEEDS_NEWER = {
    name
    for name, project in PLUGINS.items()
    for requirement in map(Requirement, project["dependencies"])
    if requirement.name == "torch" and OLDEST not in requirement.specifier
}
ENGINES = {"deepspeed", "horovod"}
"""Plugins whose engine is compiled when it is installed: installed without it here."""
WITHOUT_WHEEL = {"3.14": {"torchft"}}
"""By Python: plugins whose engine has no wheel for it, and needs a compiler for Rust."""


def run(command: Sequence[str | Path], cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CORE_"))}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def dists(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel of each distribution."""
    if given := request.config.getoption("--dists"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("dists")
    for project in (ROOT, *(ROOT / "plugins" / name for name in PLUGINS)):
        run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, project], folder)
    return folder


@pytest.fixture(scope="session")
def index(dists: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of an index with these files."""
    folder = tmp_path_factory.mktemp("index")
    for file in dists.iterdir():
        name = file.name.partition("-")[0].replace("_", "-")
        (folder / name).mkdir(exist_ok=True)
        shutil.copy(file, folder / name)
    for project in folder.iterdir():
        links = "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in project.iterdir())
        (project / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n", "utf-8")
    return folder.as_uri()


def interpreter(version: str) -> str:
    """The path of this Python, with its own standard library; skips where there is none."""
    found = shutil.which(f"python{version}")
    known = Path.home() / ".pyenv" / "versions"
    others = [str(path) for path in known.glob(f"{version}.*/bin/python")]
    for path in (*others, found):
        if (
            path
            and subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0
        ):
            return path
    pytest.skip(f"there is no Python {version} here")


def test_both_kinds_of_each(dists: Path) -> None:
    """A wheel and an sdist of torch-hal and of each plugin, with the version of its metadata."""
    names = {"torch-hal": VERSION, **{project["name"]: project["version"] for project in PLUGINS.values()}}
    for name, version in names.items():
        stem = f"{name.replace('-', '_')}-{version}"
        assert (dists / f"{stem}.tar.gz").is_file()
        assert (dists / f"{stem}-py3-none-any.whl").is_file()
    assert len([*dists.iterdir()]) == 2 * len(names)


@pytest.mark.parametrize(("python", "torch"), [("3.11", NEWEST), ("3.12", OLDEST), ("3.13", NEWEST), ("3.14", NEWEST)])
def test_install_by_name(python: str, torch: str, index: str, dists: Path, tmp_path: Path) -> None:
    """``pip install 'torch-hal[cuda,…]'`` in a fresh environment lists all, and trains on two processes."""
    run([interpreter(python), "-m", "venv", tmp_path / "fresh"], tmp_path)
    fresh = tmp_path / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    pip: list[str | Path] = [
        fresh / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--extra-index-url",
        index,
    ]
    extras = sorted(
        set(PLUGINS) - ENGINES - (NEEDS_NEWER if torch == OLDEST else set()) - WITHOUT_WHEEL.get(python, set())
    )
    run([*pip, f"torch=={torch}", "numpy", f"torch-hal[{','.join(extras)}]=={VERSION}"], tmp_path)
    run([*pip, "--no-deps", *(f"torch-hal-{name}" for name in ENGINES)], tmp_path)

    said = run([fresh / "torch-hal", "--version"], tmp_path).splitlines()
    assert said[0] == f"torch-hal {VERSION}"
    assert {f"torch-hal-{name} {PLUGINS[name]['version']}" for name in (*extras, *ENGINES)} <= {*said}
    assert any(line.startswith(f"torch {torch}") for line in said)
    listed = run([fresh / "torch-hal", "list", "--strict"], tmp_path)
    groups = {
        name: {*PLUGINS[name].get("entry-points", {})} - {"core.commands", "core.interface"}
        for name in (*extras, *ENGINES)
    }
    provides = [name for name in groups if groups[name]]
    assert all(f"torch-hal-{name} " in listed for name in provides)
    assert len(provides) >= 8
    assert "devices              cpu, cpu" in run(
        [fresh / "torch-hal", "explain", "--accelerator", "cpu", "--devices", "2"], tmp_path
    )
    assert "2 processes, the same parameters: True" in run([fresh / "python", SCRIPT], tmp_path)


def test_an_sdist_builds_the_same_wheel(dists: Path, tmp_path: Path) -> None:
    """What pip builds from torch-hal's sdist has the files of the wheel."""
    import zipfile

    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index")
    run([*pip, "--no-build-isolation", "--wheel-dir", tmp_path, dists / f"torch_hal-{VERSION}.tar.gz"], tmp_path)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as again, zipfile.ZipFile(dists / built.name) as wheel:
        assert {*again.namelist()} == {*wheel.namelist()}
