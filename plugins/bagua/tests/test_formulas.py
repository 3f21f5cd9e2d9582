"""Each algorithm against the published formulas in numpy, step by step."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import numpy as np
import pytest

from .cases import CASES, STEPS, runs_on
from .groups import run_group

LAYOUTS = [(1, 1, "cpu"), (2, 1, "cpu"), (3, 1, "cpu"), (4, 1, "cpu"), (4, 2, "cpu"), (2, 1, "acme")]
"""Processes, machines that they say they are on, and the accelerator."""

Results = list[dict[str, Any]]


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: "{} on {}, {}".format(*layout))
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int, Results]:
    processes, nodes, accelerator = request.param
    if accelerator == "acme":
        if importlib.util.find_spec("torch_acme") is None:
            pytest.skip("the simulated cards of tests/vendor are not installed")
        if not shutil.which("c++") and not shutil.which("g++"):
            pytest.skip("the simulated cards need a C++ compiler")
    out = tmp_path_factory.mktemp("formulas")
    run_group(out, "formulas.py", str(nodes), accelerator, processes=processes, nodes=nodes, ACME_DEVICES="2")
    return processes, nodes, [dict(np.load(out / f"formulas{rank}.npz")) for rank in range(processes)]


@pytest.mark.parametrize("name", CASES)
def test_weights_follow_the_formulas(group: tuple[int, int, Results], name: str) -> None:
    """Every process's weights after every step are those of the formulas, up to float32's rounding."""
    processes, nodes, results = group
    if not runs_on(name, processes, nodes):
        pytest.skip("refused by name: an odd number cannot be paired")
    first = results[0][f"{name}/first"]
    grads = [result[f"{name}/grads"] for result in results]
    expected = CASES[name].expected(first, grads, processes // nodes)
    for rank, result in enumerate(results):
        assert (result[f"{name}/first"] == first).all()
        for step in range(STEPS):
            np.testing.assert_allclose(
                result[f"{name}/weights"][step], expected[step][rank], rtol=0, atol=3e-6, err_msg=f"{rank=} {step=}"
            )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.algorithm in ("bytegrad", "qadam")])
def test_ranks_end_bit_equal(group: tuple[int, int, Results], name: str) -> None:
    """Where gradients or momentum are averaged in bytes, all processes end with the same bits."""
    _, _, results = group
    for result in results[1:]:
        assert (result[f"{name}/weights"] == results[0][f"{name}/weights"]).all()
