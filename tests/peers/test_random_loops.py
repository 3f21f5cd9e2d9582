"""Random training loops compute with a Runtime what they compute with Accelerate (``nox -s peers``)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any

import pytest
from declared import PREFIX
from python_processes import run_python

PROCESSES = 2
SCRIPT = Path(__file__).parent / "random_loops.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason=f"{PREFIX}Accelerate not installed (nox -s peers)"
)


def flat(values: list[Any]) -> Iterator[Any]:
    """What is in a nested list, in order; the length of each list, too."""
    yield len(values)
    for value in values:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield value


def apart(values: list[Any]) -> tuple[list[float], list[Any]]:
    """The floating-point numbers in a nested list, and everything else."""
    found = list(flat(values))
    is_float = [isinstance(value, float) for value in found]
    return list(compress(found, is_float)), list(compress(found, map(not_, is_float)))


@pytest.mark.parametrize("steps", [1, 3])
def test_loops_of_random_parts(steps: int, tmp_path: Path) -> None:
    """The samples of each process, losses, norms, learning rates, parameters, and what is gathered."""
    for front in ("core", "accelerate"):
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}")
        run_python(*launcher, SCRIPT, front, steps, tmp_path, cwd=tmp_path)
    for rank in range(PROCESSES):
        ours, theirs = (json.loads((tmp_path / f"{front}-{rank}.json").read_text()) for front in ("core", "accelerate"))
        for number, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
            (computed, seen), (their_computed, their_seen) = apart(found), apart(expected)
            assert seen == their_seen, (rank, number)
            assert computed == pytest.approx(their_computed, rel=1e-5, abs=1e-6), (rank, number)
