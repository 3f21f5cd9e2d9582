"""A plugin whose engine is not installed: said before anything is imported, with the line that installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installing import files_of, lay_down

from core.discovery.metadata import unmet_needs

PLUGIN = """\
from core.hookspecs import hookimpl
from core.specs import StrategySpec

@hookimpl
def core_strategies():
    return [StrategySpec(name="sim", target="core.strategies.single_device:SingleDeviceStrategy")]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    entry_points = "[core.strategies]\nsim = torch_hal_sim.plugin\n"
    requires = ["torch-hal>=0.1,<1", "no-such-engine>=1.2", "torch>=2", "other-engine; extra == 'x'"]
    lay_down(tmp_path, files_of("torch-hal-sim", "1.0", entry_points, requires))
    lay_down(tmp_path, {"torch_hal_sim/__init__.py": "", "torch_hal_sim/plugin.py": PLUGIN})
    return tmp_path


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=200)


LINE = "needs no-such-engine>=1.2, which is not installed. Run: pip install 'no-such-engine>=1.2'"


def test_explain_refuses_it(site: Path) -> None:
    """No Plan is printed, and the exit code is 2."""
    done = run(site, "core.explain", "--strategy", "sim", "--accelerator", "cpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"strategy 'sim' of torch-hal-sim {LINE}" in done.stderr


def test_probe_does_not_call_it_available(site: Path) -> None:
    """Its row is unavailable, with the reason."""
    done = run(site, "core.list", "--probe", "--kind", "strategy", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["backends"]}
    assert rows["sim"]["state"] == "unavailable"
    assert LINE in rows["sim"]["reason"]
    assert rows["ddp"]["state"] == "available"


def test_a_module_without_metadata_counts(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine built in a source tree has no metadata of its own."""
    monkeypatch.syspath_prepend(site)
    assert unmet_needs("torch-hal-sim") == ["no-such-engine>=1.2"]
    lay_down(site, {"no_such_engine/__init__.py": "raise RuntimeError('imported')"})
    assert unmet_needs("torch-hal-sim") == []
