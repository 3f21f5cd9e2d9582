"""Collectives of two processes against formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .conftest import horovodrun

DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "complex64"]
ONE, TWO = [[3, 2], [5, 7]], [[4, 2], [5, 6]]


def _each(combine: Callable[[int, int], float]) -> list[list[float]]:
    return [[combine(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(ONE, TWO, strict=True)]


EXPECTED = {
    "mean": _each(lambda a, b: (a + b) / 2),
    "sum": _each(lambda a, b: a + b),
    "min": _each(min),
    "max": _each(max),
    "product": _each(lambda a, b: a * b),
    "gather": [ONE, TWO],
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script noted."""
    path = tmp_path_factory.mktemp("collectives") / "said.pt"
    horovodrun("collectives.py", path)
    result: dict[str, Any] = torch.load(path)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", EXPECTED)
def test_tensors(said: dict[str, Any], reduction: str, dtype: str) -> None:
    """Each reduction and the gathering of each dtype, those too that Horovod itself does not take."""
    if dtype == "complex64" and reduction not in ("mean", "sum"):
        pytest.skip("core refuses it, with the remedy")
    kept = getattr(torch, dtype)
    is_mean_of_whole = reduction == "mean" and not (kept.is_floating_point or kept.is_complex)
    expected = torch.tensor(EXPECTED[reduction]).to(torch.float32 if is_mean_of_whole else kept)
    assert said[f"{reduction} {dtype}"].dtype == expected.dtype
    assert torch.equal(said[f"{reduction} {dtype}"], expected)


def test_shapes(said: dict[str, Any]) -> None:
    """Scalars, empty, boolean and transposed tensors."""
    assert said["scalar"][0] == 1.5
    assert said["scalar"][1].tolist() == [0, 1]
    assert said["empty"] == (2, 0, 3)
    assert said["flags"].tolist() == [[True], [False]]
    assert torch.equal(said["strided"], 2 * torch.arange(6.0).reshape(2, 3).T)
    assert said["gathered"].tolist() == [0, 0, 1, 1]
    gathered, summed, sent, summed_as_bytes = said["single"]
    assert (gathered.tolist(), summed.tolist(), sent.tolist()) == ([[3], [4]], [7], [4])
    assert summed_as_bytes.tolist() == [7.0]
    single, transposed = said["overwritten"]
    assert single.tolist() == [4]
    assert torch.equal(transposed, 2 * torch.arange(6).reshape(2, 3).T)
    assert "rank 0: (1,) float32; rank 1: (2,) float32" in said["unlike"]


def test_objects(said: dict[str, Any]) -> None:
    """Objects may be of another type in each process."""
    assert said["objects"] == [None, {"rank": 1}]
    assert said["broadcast"] == [0, "x" * 1000]


def test_everyone_begins_as_rank_0(said: dict[str, Any]) -> None:
    """Buffers, the state of an optimizer and its rates are rank 0's; data are shared out."""
    assert said["buffers"].tolist() == [0.0] * 6
    assert said["state"] == [[1.0] * 4] * 2
    assert said["rates"] == [0.1, 0.1]
    assert said["items"] == 48
    assert "not contiguous" in said["format"]


def test_two_modules(said: dict[str, Any]) -> None:
    """``no_sync`` of one module holds back its own gradients only, and later ones are reduced with them."""
    mean = torch.tensor(1.5)
    weight = said["second weight"]
    assert torch.allclose(said["one"], 2 * mean * weight.T.expand(2, 2))
    assert torch.equal(said["held"], said["hidden"])  # each process's own
    hidden = said["hidden"].mean(0)
    assert torch.allclose(said["two"][0], 4 * hidden)
    assert torch.equal(said["two"][0], said["two"][1])


@pytest.mark.parametrize("dense", [False, True])
def test_sparse_gradients(said: dict[str, Any], dense: bool) -> None:
    """Rows that one process alone looks up move by half of their gradient, those that both do by all of it."""
    expected = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 2.0])
    assert torch.allclose(said[f"sparse {dense}"], expected.unsqueeze(1).expand(6, 2))
