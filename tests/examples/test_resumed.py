"""Each example that is killed within an epoch and resumed ends as the run that was not: bit for bit, logs included."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from python_processes import run_python
from torch import Tensor

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow
EVERY = 4
"""Steps from one checkpoint to the next."""
LOG_EVERY = 3


class Case(NamedTuple):
    example: str
    kill_after: int
    """Training batches in each process, over all fits."""
    arguments: tuple[str, ...] = ("--epochs=3", "--items=320")
    monitor: str = "loss"
    steps: int = 1
    """Optimizer steps of a batch."""
    fits: int = 1
    devices: int = 1


CLI = (
    "fit",
    *("--trainer.max_epochs=3", "--data.items=320", f"--trainer.log_every_n_steps={LOG_EVERY}"),
    *("--trainer.callbacks=ModelCheckpoint", f"--trainer.callbacks.every_n_train_steps={EVERY}"),
    *("--trainer.logger=[csv,tensorboard]", "--trainer.accelerator=cpu"),
)

CASES = [
    Case("image_classifier_cli", 14, CLI),
    Case("gan_trainer", 26, monitor="generator_loss", steps=2, devices=2),
]
MORE = [
    Case("fine_tuning", 23, fits=2),
    Case("autoencoder", 15),
    Case("image_classifier", 14),
    Case("transformer", 17),
    Case("digits_trainer", 19),
    Case("fine_tuning", 7, fits=2),
    Case("gan_trainer", 27, monitor="generator_loss", steps=2),
    Case("reinforcement_learning", 16, monitor="steps"),
    Case("image_classifier", 9, devices=2),
    Case("reinforcement_learning", 8, monitor="steps", devices=2),
]


def run(case: Case, cwd: Path, records: Path, kill_after: int = 0, resumes: bool = False) -> None:
    """Run the example; its records are complete, or missing if it was killed."""
    given = [*case.arguments]
    if case.arguments is CLI:
        given += [f"--trainer.devices={case.devices}"]
    else:
        given += ["--accelerator=cpu", f"--devices={case.devices}", "--logger", "csv", "tensorboard"]
        given += [f"--log_every_n_steps={LOG_EVERY}", f"--checkpoint_every={EVERY}", "--default_root_dir=."]
    given += ["--ckpt_path=last"] if resumes else []
    records.mkdir()
    cwd.mkdir(exist_ok=True)
    env = {"EXAMPLE": case.example, "RECORDS": str(records), "MONITOR": case.monitor, "KILL_AFTER": str(kill_after)}
    killed = run_python(HERE / "interrupted.py", *given, cwd=cwd, env=env, expect=None if kill_after else 0)
    if kill_after:
        assert killed.returncode == -9 or case.devices > 1, killed.stderr[-5000:]
        assert killed.returncode
    else:
        assert len(list(records.iterdir())) == case.fits * case.devices


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Equal, tensors to the last bit."""
    assert type(found) is type(expected), where
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected), where
    else:
        same = found == expected
        assert same if isinstance(same, bool) else same.all(), f"{where}: {found!r} is not {expected!r}"


def files(folder: Path) -> list[str]:
    """What is in a folder, without the numbers in the names of event files, and the configs of resumed runs."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != "config-1.yaml")
    return sorted({str(path.with_name("events") if "tfevents" in path.name else path) for path in found})


def rows(folder: Path) -> dict[str, str]:
    """The CSV files."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("metrics.csv"))}


def events(folder: Path) -> dict[str, list[tuple[str, int, float]]]:
    """What TensorBoard reads, by folder, in the order of the files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for part in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        read = EventAccumulator(str(part), size_guidance={"scalars": 0})
        read.Reload()
        tags = read.Tags()["scalars"]
        found[str(part.relative_to(folder))] = [(tag, e.step, e.value) for tag in tags for e in read.Scalars(tag)]
    return found


def assert_complete(text: str, case: Case) -> None:
    """No metric has a step twice, and the steps of training are all there."""
    table = list(csv.DictReader(text.splitlines()))
    seen = Counter((name, row["step"]) for row in table for name in row if name not in ("step", "epoch") and row[name])
    assert [key for key, count in seen.items() if count > 1] == []
    steps = [int(row["step"]) for row in table if row[case.monitor]]
    assert len(steps) > 4
    ends = range(case.steps, steps[-1] + 2, case.steps)
    assert steps == [end - 1 for end in ends if end // LOG_EVERY > (end - case.steps) // LOG_EVERY]


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.exhaustive) for case in MORE)],
    ids=lambda case: f"{case.example}-{case.kill_after}-{case.devices}",
)
def test_killed_and_resumed(case: Case, tmp_path: Path) -> None:
    """Weights, optimizers, callbacks, metrics, generators, files, and what the loggers have written."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(case, whole, tmp_path / "expected")
    run(case, parts, tmp_path / "killed", case.kill_after)
    run(case, parts, tmp_path / "found", resumes=True)
    for path in sorted((tmp_path / "expected").iterdir()):
        expected, found = (torch.load(at / path.name, weights_only=False) for at in (path.parent, tmp_path / "found"))
        if "rank 0" not in path.name:  # a checkpoint has the callbacks of process 0
            del expected["callbacks"], found["callbacks"]
        assert_same(found, expected, path.name)
    assert files(parts) == files(whole)
    assert rows(parts) == rows(whole)
    assert len(rows(whole)) == case.fits
    assert events(parts) == events(whole)
    for text, scalars in zip(rows(whole).values(), events(whole).values(), strict=True):
        assert_complete(text, case)
        # The epoch comes with each set of metrics, and a step may have several, such as of training and of validation.
        assert max(Counter((tag, step) for tag, step, _ in scalars if tag != "epoch").values()) == 1
