"""The basic programs in ``examples/`` learn what they should, on one process and on two, and print one result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from python_processes import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow
DEVICES = [pytest.param("1", marks=pytest.mark.exhaustive), "2"]


def result(program: str, pattern: str, cwd: Path, *arguments: str) -> list[float]:
    """The numbers in the one line of output that matches."""
    printed = run_python(EXAMPLES / program, *arguments, cwd=cwd).stdout
    (found,) = re.findall(pattern, printed, re.MULTILINE)
    return [float(number) for number in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize(
    ("program", "epochs", "pattern", "least"),
    [
        pytest.param(
            "autoencoder.py",
            "10",
            r"^explained variance (\S+), codes \(360, 8\)$",
            [0.65],
            marks=pytest.mark.exhaustive,
        ),
        ("image_classifier.py", "8", r"^test accuracy (\S+), (\d+) of 360 read right$", [0.95, 342]),
        pytest.param(
            "fine_tuning.py",
            "6",
            r"^accuracy (\S+), after fine-tuning (\S+), frozen weights unchanged: True$",
            [0.97, 0.9],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "reinforcement_learning.py",
            "12",
            r"^the pole stands for (\S+) of 100 steps$",
            [80],
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_the_program_learns(
    program: str, epochs: str, pattern: str, least: list[float], devices: str, tmp_path: Path
) -> None:
    """Accuracy on held-out data, and what the autoencoder's codes keep of it."""
    given = ("--accelerator", "cpu", "--devices", devices, "--epochs", epochs)
    numbers = result(program, pattern, tmp_path, *given)
    assert all(number >= bound for number, bound in zip(numbers, least, strict=True)), numbers


@pytest.mark.parametrize("devices", DEVICES)
def test_the_gan_learns(devices: str, tmp_path: Path) -> None:
    """The generated points are near the ring, and all around it: at the ends of its axes, the spread is 0.71."""
    given = ("--accelerator", "cpu", "--devices", devices)
    distance, spread = result("gan_trainer.py", r"^distance to the ring (\S+), spread (\S+)$", tmp_path, *given)
    assert distance < 0.3
    assert 0.5 < spread < 0.9


@pytest.mark.parametrize("program", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_index_has_every_program(program: str) -> None:
    """One line each in README.md, or it is a module that programs share."""
    lines = [line for line in (EXAMPLES / "README.md").read_text().splitlines() if f"`{program}`" in line]
    assert len(lines) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("devices", ["1", "2"])
def test_the_command_line_trains_and_tests(devices: str, tmp_path: Path) -> None:
    """The same classifier from the command line; its config is saved."""
    given = (f"--trainer.devices={devices}", "--trainer.accelerator=cpu", "--data.batch_size=16")
    (accuracy,) = result("image_classifier_cli.py", r"^test accuracy (\S+)$", tmp_path, "fit", *given)
    assert accuracy >= 0.95
    assert [path.name for path in tmp_path.rglob("*.yaml")] == ["config.yaml"]
