"""Running the scripts of this folder in separate processes, and what they said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import python_processes

SCRIPTS = Path(__file__).parent / "scripts"


def run_script(out: Path, script: str, *arguments: object, **variables: str) -> dict[str, Any]:
    """Run a script to its end, which must be a good one; returns what its process 0 wrote to ``said.json``."""
    return python_processes.run_script(SCRIPTS / script, out, *arguments, env=variables)
