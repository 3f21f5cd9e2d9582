"""Running the scripts of this folder in separate processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from python_processes import run_python

_SCRIPTS = Path(__file__).parent / "scripts"

RunScript = Callable[..., str]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run a script of this folder to its end, with ``tmp_path`` as its working directory; what it prints."""
    return lambda script, *arguments: run_python(_SCRIPTS / script, *arguments, cwd=tmp_path, warnings="error").stdout
