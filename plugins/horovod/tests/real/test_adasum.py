"""Adasum over MPI, compared with the published formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from .conftest import mpirun

pytestmark = pytest.mark.horovod_mpi


def _adasum(one: Tensor, other: Tensor) -> Tensor:
    """Of two vectors, as Maleki et al. (MLSys 2021) have it."""
    product = (one * other).sum()
    squares = [(vector * vector).sum() for vector in (one, other)]
    shares = [1 - product / (2 * square) if square else torch.tensor(1.0) for square in squares]
    return shares[0] * one + shares[1] * other


def _combined(vectors: list[Tensor]) -> Tensor:
    """Of a power of 2 of them: neighbours first, then their results."""
    while len(vectors) > 1:
        vectors = [_adasum(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


@pytest.mark.parametrize("processes", [2, 4])
def test_steps_are_the_formula(tmp_path: Path, processes: int) -> None:
    """Each tensor moves by the adaptive sum of what each process's own SGD, with its own momentum, would change."""
    mpirun(processes, "adasum.py", tmp_path / "said.pt")
    said: dict[str, Any] = torch.load(tmp_path / "said.pt")
    momenta: list[dict[str, Tensor]] = [{} for _ in range(processes)]
    from_sum = from_average = 0.0
    for step in said["history"]:
        before, after = step["before"], step["after"]
        for name, start in before[0].items():
            changes = []
            for momentum, gradients in zip(momenta, step["gradients"], strict=True):
                momentum[name] = said["momentum"] * momentum.get(name, torch.zeros(())) + gradients[name]
                changes.append(-said["rate"] * momentum[name])
            assert all(torch.equal(found[name], start) for found in before)
            assert all(torch.equal(found[name], after[0][name]) for found in after)
            found, expected = after[0][name] - start, _combined(changes)
            assert torch.allclose(found, expected, rtol=0, atol=2e-6), name
            plain = torch.stack(changes).sum(0)
            from_sum = max(from_sum, float((found - plain).abs().max()))
            from_average = max(from_average, float((found - plain / processes).abs().max()))
    assert min(from_sum, from_average) > 0.01


def test_mpirun_without_the_controller_variable() -> None:
    """Processes that mpirun started without Horovod's variable are refused, and the error names it."""
    said = mpirun(2, "failing.py", sets_controller=False, expect=1)
    assert "Valid: HOROVOD_CONTROLLER=mpi in the environment under mpirun" in said
