"""The programs in ``examples/`` compute on several processes what plain torch computes on one, with whole batches."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from declared import PREFIX
from python_processes import run_python

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"

NEEDS = {
    "sequence_classification": ["transformers"],
    "causal_lm": ["transformers"],
    "diffusion_unet": ["diffusers"],
    "lora": ["transformers", "peft"],
    "gan": [],
    "uneven_evaluation": [],
}
"""The programs, and the packages that they need."""

pytestmark = pytest.mark.slow
LONGEST = 120
"""Lines of a program."""


def skipped(program: str) -> list[pytest.MarkDecorator]:
    missing = [package for package in NEEDS[program] if importlib.util.find_spec(package) is None]
    reason = f"{PREFIX}{', '.join(missing)} not installed (nox -s programs)"
    return [pytest.mark.skipif(bool(missing), reason=reason)]


PROGRAMS = [pytest.param(name, marks=skipped(name)) for name in NEEDS]
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(EXAMPLES)}


def run(cwd: Path, *command: object) -> list[str]:
    return run_python(*command, cwd=cwd, env=OFFLINE).stdout.splitlines()


def losses(lines: list[str]) -> list[float]:
    """The numbers after ``loss`` in each line, in order."""
    found = [re.findall(r"\bloss((?: \d\S*)+)$", line) for line in lines]
    return [float(number) for numbers in found if numbers for number in numbers[0].split()]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[str]]:
    """What plain torch prints, by program; filled by the tests."""
    return {}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_losses_are_those_of_plain_torch(
    program: str, devices: int, plain: dict[str, list[str]], tmp_path: Path
) -> None:
    """Every step's loss is equal, up to the rounding of sums in another order."""
    if program not in plain:
        plain[program] = run(tmp_path, HERE / "plain.py", program)
    expected = losses(plain[program])
    lines = run(tmp_path, EXAMPLES / f"{program}.py", "--devices", devices)
    assert len(expected) > (0 if program == "uneven_evaluation" else 8)
    assert losses(lines) == pytest.approx(expected, rel=2e-4)
    if program == "sequence_classification":
        (accuracy,) = re.findall(r"^epoch 2 accuracy (\S+) of 103$", "\n".join(lines), re.MULTILINE)
        assert float(accuracy) > 0.5
    if program == "lora":
        assert (tmp_path / "lora" / "adapter_config.json").exists()
        assert (tmp_path / "lora" / "adapter_model.safetensors").stat().st_size < 10_000
    if program == "diffusion_unet":
        assert (tmp_path / "diffusion" / "unet" / "config.json").exists()
        assert len((tmp_path / "diffusion" / "squares" / "metrics.csv").read_text().splitlines()) == 17


def test_each_item_is_evaluated_once_in_order(tmp_path: Path) -> None:
    """Three processes print the predictions and the accuracy that one process of plain torch has."""
    expected = run(tmp_path, HERE / "plain.py", "uneven_evaluation")
    lines = run(tmp_path, EXAMPLES / "uneven_evaluation.py", "--devices", 3)
    for start in ("predictions", "accuracy"):
        assert [line for line in lines if line.startswith(start)] == [
            line for line in expected if line.startswith(start)
        ]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason=f"{PREFIX}transformers not installed")
def test_a_resumed_language_model_continues_exactly(tmp_path: Path) -> None:
    """Stopped after step 4 and resumed from step 3, in the middle of an epoch with accumulation: the same losses."""
    program = (EXAMPLES / "causal_lm.py", "--devices", 2, "--batch-size", 8, "--save-every", 3)
    whole = losses(run(tmp_path, *program, "--project-dir", "whole"))
    first = losses(run(tmp_path, *program, "--project-dir", "parts", "--stop-after", 4))
    second = losses(run(tmp_path, *program, "--project-dir", "parts", "--resume"))
    assert first == whole[:4]
    assert second == whole[3:]


@pytest.mark.parametrize("program", NEEDS)
def test_programs_are_short(program: str) -> None:
    """A program is a script that a user reads at once."""
    assert len((EXAMPLES / f"{program}.py").read_text().splitlines()) < LONGEST
