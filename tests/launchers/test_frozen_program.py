"""A program made by PyInstaller has no interpreter that runs other code: torch-hal starts the program itself again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
#!{python}
import sys
sys.path[:0] = {path!r}
sys.frozen, sys.executable, sys.orig_argv = True, {program!r}, [{program!r}, *sys.argv[1:]]  # as PyInstaller sets them

from torch_hal import Runtime
from torch_hal.list import main

print("began", flush=True)
if sys.argv[1] == "list":
    sys.exit(main(["--probe", "--kind", "accelerator"]))
with Runtime(accelerator="cpu", devices=2, strategy="ddp") as runtime:
    print("processes", runtime.gather_object([runtime.process_index]), flush=True)
"""


def run(folder: Path, argument: str) -> str:
    program = folder / "program"
    program.write_text(PROGRAM.format(python=sys.executable, path=sys.path, program=str(program)), "utf-8")
    program.chmod(0o755)
    done = subprocess.run([program, argument], capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_backends_are_queried_in_the_program_itself(tmp_path: Path) -> None:
    """Its child answers when it imports torch_hal, and never begins what the program does."""
    printed = run(tmp_path, "list")
    assert "available (" in printed
    assert "failed" not in printed
    assert printed.count("began") == 1


@pytest.mark.slow
def test_further_processes_are_the_program(tmp_path: Path) -> None:
    """There is no script to start again."""
    printed = run(tmp_path, "train")
    assert "processes [0, 1]" in printed
