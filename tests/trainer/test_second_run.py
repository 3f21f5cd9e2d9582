"""One Trainer after a run, or after one that has failed: fit, validate, test, predict and fit again."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from python_processes import run_python

SCRIPT = Path(__file__).parents[1] / "distributed" / "scripts" / "second_run.py"
Case = tuple[str, str, int, str, str, str]
QUICK: tuple[Case, ...] = (
    ("single_device", "bf16-mixed", 1, "torch", "module", "fails"),
    ("ddp_sharded", "32-true", 2, "torch", "none", "fits"),
)
SLOW: tuple[Case, ...] = (
    ("single_device", "32-true", 1, "foreign", "callback", "fits"),
    ("ddp", "32-true", 2, "torch", "callback", "fits"),
    ("ddp", "bf16-mixed", 2, "foreign", "none", "fails"),
    ("ddp", "bf16-mixed", 1, "torch", "module", "fits"),
)


def _cases() -> list[Case]:
    return [
        (strategy, precision, devices, optimizer, hook, before)
        for strategy in ("single_device", "ddp", "ddp_sharded")
        for precision in ("32-true", "bf16-mixed")
        for devices in ((1,) if strategy == "single_device" else (1, 2))
        for optimizer in (("torch",) if strategy == "ddp_sharded" else ("torch", "foreign"))
        for hook, before in itertools.product(("none", "module", "callback"), ("fits", "fails"))
    ]


def _mark(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    return () if case in QUICK else (pytest.mark.slow if case in SLOW else pytest.mark.exhaustive,)


CASES = [pytest.param(*case, marks=_mark(case)) for case in _cases()]


@pytest.mark.parametrize(("strategy", "precision", "devices", "optimizer", "hook", "before"), CASES)
def test_a_second_run(
    strategy: str, precision: str, devices: int, optimizer: str, hook: str, before: str, tmp_path: Path
) -> None:
    """It does what a new Trainer does, with the garbage collector off, and while a traceback of the first is kept."""
    arguments = (strategy, precision, devices, optimizer, hook, before)
    run_python(
        SCRIPT,
        *arguments,
        cwd=tmp_path,
        timeout=200,
        warnings="ignore",
        leaves_nothing=True,
        env={"OUT": str(tmp_path)},
    )
    said = [json.loads((tmp_path / f"said.{rank}.json").read_text()) for rank in range(devices)]
    assert said == [[True, before == "fails", 8 // devices]] * devices
