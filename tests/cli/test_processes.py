"""A training script with ``CLI`` in processes: alone, as two, and where jsonargparse is not installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from python_processes import run_python

SCRIPT = Path(__file__).with_name("train.py")
QUIET = ("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false")


def weights(stdout: str) -> list[str]:
    """The last number of each line that a run of the script ends with."""
    return re.findall(r"^ended fit 8 (\S+)$", stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("ddp_spawn", marks=pytest.mark.exhaustive)])
def test_two_processes_save_one_config(strategy: str, tmp_path: Path) -> None:
    """Both processes make the same run of 32 items; one config is saved, and repeats the run from the file alone."""
    given = (f"--trainer.strategy={strategy}", "--trainer.devices=2", "--trainer.max_epochs=2", "--data.batch_size=4")
    first = run_python(SCRIPT, "fit", *given, "--model.lr=0.2", *QUIET, cwd=tmp_path)
    (weight,) = weights(first.stdout)
    (config,) = tmp_path.rglob("*.yaml")
    assert any(path.name.startswith("epoch=") for path in config.parent.iterdir())
    assert yaml.safe_load(config.read_text())["model"]["lr"] == 0.2
    (tmp_path / "again").mkdir()
    second = run_python(SCRIPT, "fit", "--config", config, cwd=tmp_path / "again")
    assert weights(second.stdout) == [weight]


@pytest.mark.slow
def test_a_refused_config_ends_all_processes(tmp_path: Path) -> None:
    """Another run's config in the folder: process 0 refuses, no process trains or is left behind."""
    given = (
        "--trainer.strategy=ddp",
        "--trainer.devices=2",
        "--trainer.max_epochs=2",
        *QUIET,
        "--trainer.enable_checkpointing=false",
        "--trainer.logger=false",
    )
    (tmp_path / "config.yaml").write_text("model: {}\n")
    ended = run_python(SCRIPT, "fit", *given, cwd=tmp_path, expect=1, leaves_nothing=True)
    assert "with the config of another run" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_the_printed_config_runs(tmp_path: Path) -> None:
    """``--print_config > c.yaml``, then ``--config c.yaml``, in one process; without a warning."""
    added = [f"--trainer.callbacks+={name}" for name in ("LearningRateMonitor", "Timer")]  # nothing has imported them
    printed = run_python(SCRIPT, "fit", "--trainer.max_epochs=2", *QUIET, *added, "--print_config", cwd=tmp_path)
    (tmp_path / "c.yaml").write_text(printed.stdout)
    ran = run_python(SCRIPT, "fit", "-c", "c.yaml", "--trainer.devices=1", cwd=tmp_path, warnings="error")
    assert len(weights(ran.stdout)) == 1


def test_without_jsonargparse(tmp_path: Path) -> None:
    """The error says what to install."""
    code = "import sys; sys.modules['jsonargparse'] = None; from core.cli import CLI"
    ended = run_python("-c", code, cwd=tmp_path, expect=1)
    assert "jsonargparse is not installed. Run: pip install 'torch-hal[cli]@file://" in ended.stderr
