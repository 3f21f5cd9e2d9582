"""``torch_hal``, the second import name, and both names where a user's own ``core`` is found first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

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
assert torch_hal.discovery.scan.__name__ == core.discovery.scan.__spec__.name == "core.discovery.scan"
assert {*core.__all__} <= {*dir(torch_hal)} and torch_hal.__all__ == core.__all__
assert issubclass(torch_hal.CoreError, Exception) and core.CoreError is torch_hal.errors.CoreError
import torch_hal.callbacks, importlib
assert importlib.reload(core.callbacks) is torch_hal.callbacks
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


@pytest.mark.parametrize("own", ["core/__init__.py", "core.py"])
def test_a_core_of_the_users_own(own: str, tmp_path: Path) -> None:
    """Where the script's directory has a ``core``, importing torch_hal names it and says what to do; -P helps."""
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("mine = True\n")
    hidden_by = tmp_path / own.removesuffix("/__init__.py")
    done = run("from torch_hal import Trainer", tmp_path)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ImportError: torch_hal: the package 'core' of torch-hal")
    assert f"is hidden by {hidden_by}, which" in error
    assert "Rename" in error
    assert "python -P" in error
    assert "ImportError" in run("import core, torch_hal", tmp_path).stderr  # the user's is imported already
    assert run("from torch_hal import Trainer", tmp_path, options=("-P",)).returncode == 0


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path) -> None:
    """A folder ``core`` without ``__init__.py`` and without modules of ours does not get in the way."""
    (tmp_path / "core").mkdir()
    done = run("from torch_hal import Trainer", tmp_path)
    assert done.returncode == 0, done.stderr
