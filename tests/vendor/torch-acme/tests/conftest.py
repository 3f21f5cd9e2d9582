"""Two cards, whatever the machine says, and separate processes for what torch takes only once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["ACME_DEVICES"] = "2"  # before torch is imported, which loads the backend

import torch

refused_by_cuda = pytest.mark.skipif(
    torch.version.cuda is not None, reason="by declaration: torch's CUDA build refuses simulated HPU and MPS devices"
)

SCRIPTS = Path(__file__).parent / "scripts"

RunScript = Callable[..., str]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run a script in ``processes`` processes, each with its number as the last argument; what they print."""

    def run(name: str, *args: str, processes: int = 1, **environ: str) -> str:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
        started = [
            subprocess.Popen(
                [sys.executable, str(SCRIPTS / name), *args, str(rank)],
                env=env,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            outputs = [process.communicate(timeout=240)[0] for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        assert [process.returncode for process in started] == [0] * processes, "\n".join(outputs)
        return "".join(outputs)

    return run
