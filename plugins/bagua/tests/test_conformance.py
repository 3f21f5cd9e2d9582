"""The conformance kit of core on the strategies of this package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_hal_devkit import check_backends

from torch_hal.specs import StrategySpec

HERE = Path(__file__).parent


def _named(name: str, **options: Any) -> StrategySpec:
    target = "torch_hal_bagua.strategy:BaguaStrategy"
    return StrategySpec(name=name, target=target, description="of these tests", init_args=options)


SPECS = [
    _named("ring", algorithm="low_precision_decentralized", hierarchical=False),
    _named("pairs", algorithm="decentralized", hierarchical=False, peer_selection_mode="shift_one"),
]
"""What the names mean between machines, here between processes of one."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("bagua_bytegrad", 150),
        pytest.param("ring", 50, marks=pytest.mark.slow),
        pytest.param("bagua", 150, marks=pytest.mark.exhaustive),
        pytest.param("bagua_gradient_allreduce", 150, marks=pytest.mark.exhaustive),
        pytest.param("bagua_decentralized", 135, marks=pytest.mark.exhaustive),
        pytest.param("bagua_low_precision_decentralized", 135, marks=pytest.mark.slow),
        pytest.param("pairs", 50, marks=pytest.mark.slow),
    ],
)
def test_it_passes_the_kit(name: str, least: int, tmp_path: Path) -> None:
    """All that is not declared otherwise works, on one process and on two; nothing is expected to fail."""
    options = [] if name.startswith("bagua") else ["--tiers=T3"]  # of a class, the rest is the same by any name
    check_backends(f"strategy:{name}", folder=tmp_path, options=options, specs=SPECS, min_passed=least)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "least"), [("async", 130), ("qadam", 135)])
def test_its_own_suite_passes(name: str, least: int, tmp_path: Path) -> None:
    """So does an algorithm that needs more than a name: one whose runs differ, and one with its own optimizer."""
    known = HERE / f"expected-failures-{name}.toml"
    options = [f"--expected-failures={known}"] if known.exists() else []
    kit = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "torch_hal_devkit.plugin", f"--rootdir={tmp_path}")
    done = subprocess.run(
        [sys.executable, *kit, *options, HERE / "scripts" / f"conformance_{name}.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    line = re.search(r"^conformance of .*: (\d+) passed", done.stdout, re.MULTILINE)
    assert line, done.stdout
    assert int(line[1]) >= least, done.stdout
