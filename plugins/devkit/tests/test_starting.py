"""Strategies whose processes neither they nor torchrun start: the vendor's suite says what does."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kit import declare, run_kit

pytestmark = pytest.mark.usefixtures("started_not_forked")

PLUGIN = """
import os

from core.errors import ConfigurationError
from core.hookspecs import hookimpl
from core.specs import StrategySpec
from core.strategies import DDPStrategy


class Started(DDPStrategy):
    name = "started"
    launch_command = "acmerun python script.py"

    def __init__(self):
        super().__init__()
        self.launcher = None

    def connect(self, **parts):
        super().connect(**parts)
        if self.cluster_environment.world_size > 1 and "ACMERUN" not in os.environ:
            raise ConfigurationError("not acmerun's")


@hookimpl
def core_strategies():
    yield StrategySpec(name="started", target="acmerun:Started", description="DDP that acmerun starts")
"""

SUITE = """
import os
import sys

import pytest

from torch_hal_devkit import BackendUnderTest, StrategySuite


class TestStarted(StrategySuite):
    @pytest.fixture
    def backend(self):
        return BackendUnderTest.find("strategy", "started", os.environ)

    @pytest.fixture
    def start_command(self):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node"]
        return lambda processes: ["env", "ACMERUN=1", sys.executable, *torchrun, str(processes)]
"""

CHOSEN = "exit_cleanly or started_already or ends_all"


@pytest.fixture
def site(tmp_path: Path) -> list[Path]:
    """A folder with the strategy ``started``."""
    folder = tmp_path / "site"
    declare(folder, "torch-hal-acmerun", {"core.strategies": {"started": "acmerun"}})
    (folder / "acmerun.py").write_text(PLUGIN)
    return [folder]


@pytest.mark.slow
def test_without_a_command_it_is_skipped(tmp_path: Path, site: list[Path]) -> None:
    """What takes several processes is skipped by declaration, which the reason quotes."""
    run = run_kit(tmp_path, "--backend=strategy:started", "--tiers=T3", "-k", CHOSEN, site=site)
    assert run.code == 0, run.output
    assert len(run.tests) >= 4
    assert run.ids("unsupported") == set(run.tests)
    for test in run.tests.values():
        assert test["reason"].startswith(
            "launch_command='acmerun python script.py', and the suite's fixture start_command"
        )


@pytest.mark.slow
def test_with_a_command_it_is_run(tmp_path: Path, site: list[Path]) -> None:
    """Its processes are those of the suite's command; only what would start them as torchrun does is skipped."""
    suite = tmp_path / "test_started.py"
    suite.write_text(SUITE)
    run = run_kit(tmp_path, "--tiers=T3", "-k", CHOSEN, site=site, suite=[str(suite)])
    assert run.code == 0, run.output
    (skipped,) = run.ids("unsupported")
    assert run.tests[skipped]["reason"] == (
        "launch_command='acmerun python script.py': torchrun cannot start its processes"
    )
    assert len(run.ids("passed")) == len(run.tests) - 1 >= 3, run.output
