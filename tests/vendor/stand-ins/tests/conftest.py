"""No Acme cards: a process simulates one type of device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

os.environ["ACME_DEVICES"] = "0"

RunCode = Callable[..., str]


@pytest.fixture
def run_code() -> RunCode:
    """Run Python in a separate process, since torch takes a type of device for good; what it prints."""

    def run(code: str, **environ: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run
