"""The same simulation in the place of types that torch knows."""

from __future__ import annotations

import pytest

from .conftest import RunScript, refused_by_cuda


@pytest.mark.parametrize(
    "device_type", ["ipu", "xla", *(pytest.param(name, marks=refused_by_cuda) for name in ("hpu", "mps", "xpu"))]
)
def test_it_plays_a_type_that_torch_knows(run_script: RunScript, device_type: str) -> None:
    """Training on a simulated HPU, IPU, MPS, XLA or XPU device gives the losses of the CPU."""
    assert run_script("other_type.py", device_type, ACME_DEVICES="0") == "trained\n"


def test_one_type_a_process(run_script: RunScript) -> None:
    """Another type than the one that is there already is refused, by name; the same arguments again are not."""
    assert run_script("two_types.py") == "refused\n"
