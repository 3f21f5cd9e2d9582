"""Running the scripts of this folder in processes of their own, and what they said."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import core

SCRIPTS = Path(__file__).parent / "scripts"
RANKS = ("CORE_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC_", "CROSS_", "DS_")
STAGES = ("0", "1", "2", "3")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the library is left out where it is not installed."""
    if importlib.util.find_spec("deepspeed") is None:
        for item in items:
            if item.get_closest_marker("deepspeed"):
                item.add_marker(pytest.mark.skip(reason="DeepSpeed is not installed, as by nox -s deepspeed"))


def run(out: Path, command: Sequence[object], code: int = 0, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which must have that exit code; scripts write to ``out``."""
    out.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(RANKS)}
    environ |= {"OUT": str(out), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [str(word) for word in command],
        env=environ,
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    ended = f"exit code {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-6000:]}"
    assert result.returncode == code, ended
    return result


def run_script(out: Path, script: str, *arguments: object, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder."""
    return run(out, [sys.executable, script, *arguments], seconds=seconds)


def said(file: Path) -> dict[str, Any]:
    """What a script wrote."""
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def prepared(runtime: core.Runtime) -> tuple[nn.Module, Any]:
    """A small model and its optimizer."""
    model = nn.Linear(4, 2)
    prepared: tuple[nn.Module, Any] = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return prepared
