"""``py.typed``: mypy and pyright check a user's program against the installed wheel, without this repository."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("outside.py")
WRONG = '\n\ndef wrong() -> None:\n    Trainer(max_epochs="three").fit(3)\n'
"""Two mistakes on one line."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel; dependencies are those from here."""
    folder = tmp_path_factory.mktemp("outside")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "fresh"], check=True)
    python = folder / "fresh" / "bin" / "python"
    pip, quiet = (sys.executable, "-m", "pip", "--disable-pip-version-check"), ("--quiet", "--no-deps", "--no-index")
    subprocess.run([*pip, "wheel", *quiet, "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True)
    subprocess.run([*pip, "--python", python, "install", *quiet, *folder.glob("*.whl")], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    torch = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__path__[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    for place in {sysconfig.get_path("purelib"), str(Path(torch).parent)}:
        with open(Path(purelib, "dependencies.pth"), "a", encoding="utf-8") as file:
            file.write(f"{place}\n")
    return python


def checked(command: list[str | Path], folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text, "utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
    return subprocess.run(
        [*command, "program.py"], cwd=folder, env=environ, capture_output=True, text=True, timeout=800, check=False
    )


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_types(checker: str, python: Path, tmp_path: Path) -> None:
    """No complaint about a right program, and one about each wrong argument."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    options = ("--strict", "--python-executable") if checker == "mypy" else ("--pythonpath",)
    command: list[str | Path] = [sys.executable, "-m", checker, *options, python]
    program = PROGRAM.read_text("utf-8")
    right = checked(command, tmp_path, program)
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = checked(command, tmp_path, program + WRONG)
    assert wrong.returncode == 1
    line = f"program.py:{len((program + WRONG).splitlines())}"
    assert wrong.stdout.count(line) == 2, wrong.stdout
