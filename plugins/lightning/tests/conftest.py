"""Running the scripts of this folder in separate processes, on simulated cards, and what they said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import python_processes
from declared import pytest_terminal_summary, skip_all, why_no_simulated_cards

__all__ = ["pytest_terminal_summary", "run_script"]

SCRIPTS = Path(__file__).parent / "scripts"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All need Lightning and the simulated cards."""
    skip_all(items, why_no_simulated_cards("Lightning", "lightning"))


def run_script(out: Path, script: str, *arguments: object, **variables: str) -> dict[str, Any]:
    """Run a script to its end, which must be a good one; returns what its process 0 wrote to ``said.json``."""
    env = {"ACME_DEVICES": "2", **variables}
    return python_processes.run_script(SCRIPTS / script, out, *arguments, timeout=380, env=env)
