"""Comparing versions without ``packaging``: the same answers, and only where the question is plain."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from core.discovery.metadata import unmet

VERSIONS = ("0.1", "0.1.0", "0.1.1", "0.2", "0.9.9", "1", "1.0.0", "1.0.1", "1.4.2", "1.10", "2", "10.0")
PLAIN = [
    f"torch-hal{operator}{version}"
    for operator, version in itertools.product(("~=", "==", "!=", "<=", ">=", "<", ">"), VERSIONS)
    if operator != "~=" or "." in version
]
MORE = [
    "torch-hal",
    "torch_hal >= 0.1, < 1",
    "Torch.HAL (>=0.1,!=0.1.1)",
    "torch-hal==0.1.*",
    "torch-hal===0.1.0",
    "torch-hal!=1.*",
    "torch-hal>=0.1.dev1",
    "torch-hal[testing]>=1",
    "torch-hal>=99; extra == 'gpu'",
    "torch-hal>=99; python_version < '3'",
    "torch-hal>=99; python_version > '3'",
    "torch-hal @ https://example.org/torch_hal.whl",
]


@pytest.mark.parametrize("requirement", PLAIN + MORE)
def test_agrees_with_packaging(requirement: str) -> None:
    """Whether a version meets a requirement is what packaging says, for releases and for pre-releases."""
    parsed = Requirement(requirement)
    applies = parsed.marker is None or parsed.marker.evaluate({"extra": ""})
    for version in (*VERSIONS, "0.2.dev1", "1.0rc1", "0.1.0+local", "1.0.post1"):
        met = not applies or parsed.specifier.contains(version, prereleases=True)
        assert (unmet(requirement, version) == "") == met, version


@pytest.mark.parametrize("requirement", ["torch-hal>=", "torch-hal>=banana", "torch-hal~=1", "torch-hal 0.1"])
def test_unreadable_requirement_is_named(requirement: str) -> None:
    """A requirement that is not a requirement is not met, and is quoted."""
    assert f"its requirement {requirement!r} cannot be read" in unmet(requirement, "0.1.0")


def test_plain_requirement_needs_no_packaging() -> None:
    """Plain release numbers are compared without importing packaging."""
    code = "import sys; from core.discovery.metadata import unmet; assert unmet('torch-hal>=99', '0.1.0'); "
    code += "assert not unmet('torch-hal (>=0.1,<1)', '0.1.0'); sys.exit('packaging' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
