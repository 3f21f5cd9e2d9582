"""The examples for the Trainer compute the same under Lightning: only their imports are changed (``nox -s peers``)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from declared import PREFIX
from python_processes import run_python

from .ported import PROGRAMS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason=f"{PREFIX}Lightning not installed (nox -s peers)"
)
HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
SHARED = ("command_line", "digits", "gan")
IMPORTS = {
    "Module": "from lightning.pytorch import LightningModule as Module",
    "DataModule": "from lightning.pytorch import LightningDataModule as DataModule",
    "Trainer": "from lightning.pytorch import Trainer",
    "seed_everything": "from lightning.pytorch import seed_everything",
    "CLI": "from lightning.pytorch.cli import LightningCLI as CLI",
    "ModelCheckpoint": "from lightning.pytorch.callbacks import ModelCheckpoint",
}


def lightnings(match: re.Match[str]) -> str:
    """The imports of Lightning's names, for a line that imports ours."""
    return "\n".join(IMPORTS[name] for name in match[1].split(", "))


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each program computes, by front end."""
    found = {}
    for front in ("core", "lightning"):
        folder = tmp_path_factory.mktemp(front)
        for program in (*SHARED, *PROGRAMS):
            text = (EXAMPLES / f"{program}.py").read_text("utf-8")
            if front == "lightning" and program != "gan":  # the data and networks of gan.py, which uses the Runtime
                text, count = re.subn(r"^from core(?:\.\w+)? import (.+)$", lightnings, text, flags=re.MULTILINE)
                assert count == (program != "digits")
            (folder / f"{program}.py").write_text(text, encoding="utf-8")
        run_python(HERE / "ported.py", folder, folder / "records.pt", cwd=folder)
        found[front] = torch.load(folder / "records.pt", weights_only=True)
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_step_is_the_same(program: str, computed: dict[str, Any]) -> None:
    """To the last bit: what each step logs, and each fit's parameters; metrics of the epoch as float32."""
    expected, found = computed["lightning"][program], computed["core"][program]
    assert len(found) == len(expected) == PROGRAMS[program][1]
    for one, other in zip(found, expected, strict=True):
        assert len(one["steps"]) > 5
        assert one["steps"] == other["steps"]
        assert one["module"].keys() == other["module"].keys()
        assert all(torch.equal(one["module"][name], value) for name, value in other["module"].items())
        assert one["metrics"].keys() == other["metrics"].keys()
        for name, value in other["metrics"].items():
            assert float(one["metrics"][name]) == pytest.approx(float(value), rel=1e-6)
