"""Scripts of ``benchmarks/`` work in small: ``gpu.py`` on a CPU, and ``overhead.py`` on two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(folder: Path, *arguments: str, script: str = "gpu.py") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FOLDER / script, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )


@pytest.mark.slow
def test_speed_in_small(tmp_path: Path) -> None:
    """Our front ends have figures, and the losses of the loop by hand; so have peers, or their rows say why not."""
    done = run(tmp_path, "--dry-run", "--parts", "training,overlap")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    assert result["machine"]["accelerator"] == "cpu"
    for mode in ("fp32", "bf16-mixed"):
        rows = {row["name"]: row for row in result["training"] if row["mode"] == mode}
        by_hand = rows["plain torch"]
        assert by_hand["last_loss"] > 0
        for name in ("torch-hal Runtime", "torch-hal Trainer", "plain torch, again"):
            assert rows[name]["last_loss"] == by_hand["last_loss"], name
            assert rows[name]["tokens_per_second"] > 0
        for name in ("Accelerate", "Fabric", "Lightning"):
            row = rows[name]
            assert "is not installed" in row["error"] if "error" in row else row["tokens_per_second"] > 0
    assert result["overlap"]["copy_milliseconds"] > 0
    written = (tmp_path / "gpu.md").read_text("utf-8")
    assert "A dry run" in written
    assert done.stdout.startswith(written)


def test_a_gpu_is_needed(tmp_path: Path) -> None:
    """Without an accelerator it says so and measures nothing."""
    done = run(tmp_path, "--accelerator", "cpu")
    assert done.returncode == 2
    assert "--dry-run" in done.stderr
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_overhead_on_two_processes(tmp_path: Path) -> None:
    """The Runtime ends with the bits of DistributedDataParallel by hand, from a list and from a class of data."""
    names = [f"{name}, {data}" for data in ("list", "class") for name in ("plain loop", "torch-hal Runtime")]
    short = ("--processes", "2", "--rounds", "1", "--steps", "40", "--epochs", "2")
    done = run(tmp_path, *short, "--only", *names, script="overhead.py")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == names
    assert all(float(row[1]) > 0 for row in rows)
