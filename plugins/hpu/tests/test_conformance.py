"""The conformance kit of core on simulated cards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import needs_simulation

pytest.importorskip("core.testing.plugin", reason="needs core's conformance kit")
pytest.importorskip("stand_ins", reason="needs the stand-ins for Intel's library")

_BACKENDS = ("accelerator:hpu", "strategy:hpu_single", "strategy:hpu_parallel")


@needs_simulation
@pytest.mark.timeout(600)
@pytest.mark.parametrize("modules", ["0", pytest.param("0,1", marks=pytest.mark.slow)], ids=["one card", "two cards"])
def test_it_passes_the_kit(cards: Path, tmp_path: Path, modules: str) -> None:
    """The kit passes for every backend: skips are declared, and what Gaudi is otherwise in fails as expected."""
    number = len(modules.split(","))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "core.testing.plugin"]
    hidden = ["--hide-devices", "HABANA_VISIBLE_MODULES=7"]
    known = ["--expected-failures", str(Path(__file__).with_name("expected-failures.toml"))]
    backends = [f"--backend={backend}" for backend in _BACKENDS]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "--pyargs", "core.testing.suite", *backends, f"--backend-devices={number}", *hidden, *known],
        # The library loads itself, as it does in eager mode: the kit computes on the host before it asks for a card.
        env={**environ, "HABANA_VISIBLE_MODULES": modules, "HPU_DEVICES": str(number), "PT_HPU_AUTOLOAD": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for backend in _BACKENDS:
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"conformance of {backend}"))
        assert "passed" in line
        assert "failed" not in line
