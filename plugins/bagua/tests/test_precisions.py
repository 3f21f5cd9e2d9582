"""Every algorithm in every precision: trains, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_hal_bagua.algorithms import ALGORITHMS as ALGORITHM_CLASSES

from .groups import run_group
from .trainer_cases import ALGORITHMS, EQUAL_RANKS, PRECISIONS


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    out = tmp_path_factory.mktemp("precisions")
    run_group(out, "precisions.py", processes=2)
    return [torch.load(out / f"precisions{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "ddp"])
def test_trains_or_is_refused(ranks: list[Any], name: str, precision: str) -> None:
    """The loss falls; processes whose gradients are averaged agree; a scaled loss is for these only.

    Under 16-mixed a step that is not finite in one process is left out in both.
    """
    one, other = (rank[name, precision] for rank in ranks)
    served = ALGORITHM_CLASSES[ALGORITHMS[name][0]].precisions
    if served is not None and precision not in served:
        assert f"does not support precision {precision!r}" in one["refused"]
        return
    assert one["losses"][-1] < one["losses"][0] * 0.9
    if name in EQUAL_RANKS:
        assert all(torch.equal(a, b) for a, b in zip(one["weights"], other["weights"], strict=True))
