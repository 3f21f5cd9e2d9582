"""Running the scripts of this folder in separate processes, on simulated cards, and what they said."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from declared import PREFIX, pytest_terminal_summary
from python_processes import run_python

__all__ = ["pytest_terminal_summary", "run_script"]

os.environ.setdefault("ACME_DEVICES", "2")  # before torch is imported, which loads the cards

SCRIPTS = Path(__file__).parent / "scripts"


def why_not() -> str | None:
    """Why these tests cannot run here."""
    if importlib.util.find_spec("accelerate") is None:
        return f"{PREFIX}Accelerate is not installed, as by nox -s bridges"
    if importlib.util.find_spec("torch_acme") is None:
        return f"{PREFIX}torch-acme is not installed, as by nox -s bridges"
    return None if any(map(shutil.which, ("c++", "g++"))) else f"{PREFIX}torch-acme needs a C++ compiler"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All need Accelerate and the simulated cards."""
    if (reason := why_not()) is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def run_script(out: Path, script: str, *arguments: object, **variables: str) -> dict[str, Any]:
    """Run a script to its end, which must be a good one; returns what its process 0 wrote to ``said.json``."""
    out.mkdir(exist_ok=True)
    env = {"OUT": str(out), "ACME_DEVICES": "2", **variables}
    run_python(SCRIPTS / script, *arguments, cwd=out, timeout=380, warnings="ignore", env=env)
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said
