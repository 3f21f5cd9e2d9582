"""Running the scripts of this folder in separate processes, and what they said."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch import nn

import torch_hal

SCRIPTS = Path(__file__).parent / "scripts"
STAGES = ("0", "1", "2", "3")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the library is left out where it is not installed."""
    if importlib.util.find_spec("deepspeed") is None:
        for item in items:
            if item.get_closest_marker("deepspeed"):
                item.add_marker(pytest.mark.skip(reason="DeepSpeed is not installed, as by nox -s deepspeed"))


def run(out: Path, *arguments: object, code: int = 0, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of the scripts, which must end with that exit code; scripts write to ``out``."""
    out.mkdir(exist_ok=True)
    return run_python(*arguments, cwd=SCRIPTS, expect=code, timeout=seconds, env={"OUT": str(out)})


def said(file: Path) -> dict[str, Any]:
    """What a script wrote."""
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def prepared(runtime: torch_hal.Runtime) -> tuple[nn.Module, Any]:
    """A small model and its optimizer."""
    model = nn.Linear(4, 2)
    prepared: tuple[nn.Module, Any] = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return prepared
