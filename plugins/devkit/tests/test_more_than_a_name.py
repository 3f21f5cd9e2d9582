"""Backends that take more than a name: arguments, an optimizer, and reasons for what they do not support."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from torch_hal_devkit import check_backends

from torch_hal.specs import AcceleratorSpec, StrategySpec

from .kit import declare, run_kit

PLUGIN = """
from contextlib import nullcontext

import torch

from core.errors import ConfigurationError
from core.hookspecs import hookimpl
from core.specs import StrategySpec
from core.strategies import DDPStrategy, SingleDeviceStrategy


class AdamAlone(SingleDeviceStrategy):
    clip_algorithms = ("norm",)
    precisions = ("32-true", "64-true", "bf16-mixed")

    def connect(self, **parts):
        super().connect(**parts)
        if parts["precision"].name == "64-true":
            raise ConfigurationError("precision='64-true': too wide")

    def setup_optimizers(self, optimizers):
        if not all(isinstance(optimizer, torch.optim.Adam) for optimizer in optimizers):
            raise ConfigurationError("Adam alone")
        return super().setup_optimizers(optimizers)


class Apart(DDPStrategy):
    keeps_replicas_equal = False

    def __init__(self):
        super().__init__(start_method="fork")

    def configure_ddp(self):
        pass


@hookimpl
def core_strategies():
    yield StrategySpec(name="adam_alone", target="own:AdamAlone", description="takes Adam alone")
    yield StrategySpec(name="apart", target="own:Apart", description="each process trains by itself")
"""

SUITE = """
import os

import pytest
import torch

from torch_hal_devkit import BackendUnderTest, StrategySuite


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-3)


class TestAdamAlone(StrategySuite):
    @pytest.fixture
    def backend(self):
        return BackendUnderTest.find("strategy", "adam_alone", os.environ)

    @pytest.fixture
    def optimizer(self):
        return "test_adam_alone:adam"
"""


@pytest.fixture
def site(tmp_path: Path) -> list[Path]:
    """A folder with the two strategies."""
    folder = tmp_path / "site"
    declare(folder, "torch-hal-own", {"core.strategies": {"adam_alone": "own", "apart": "own"}})
    (folder / "own.py").write_text(PLUGIN)
    return [folder]


@pytest.mark.slow
def test_the_optimizer_is_the_suites(tmp_path: Path, site: list[Path]) -> None:
    """All of training, by hand too, is with the optimizer that the suite names; what is refused by name is skipped."""
    suite = tmp_path / "test_adam_alone.py"
    suite.write_text(SUITE)
    run = run_kit(tmp_path, "--tiers=T2", site=site, suite=[str(suite)])
    assert run.code == 0, run.output
    assert len(run.ids("passed")) > 45, run.output
    reasons = {name.partition("::")[2]: run.tests[name]["reason"] for name in run.ids("unsupported")}
    assert reasons["test_training_in[one_device-64-true]"] == "precision='64-true': too wide"
    for loop in ("fit", "custom loop"):
        assert "algorithm='value'" in reasons[f"test_clipping_equals_torch[one_device-{loop}-value]"]


@pytest.mark.slow
def test_your_own_weights_are_not_a_failure(tmp_path: Path, site: list[Path]) -> None:
    """A difference from the joined batch counts as declared; that a resumed run has lost its weights does not."""
    run = run_kit(tmp_path, "--backend=strategy:apart", "--tiers=T3", "-k", "train or same or resum", site=site)
    declared = {name for name in run.ids("unsupported") if "keeps_replicas_equal is False" in run.tests[name]["reason"]}
    assert declared >= {
        "strategy:apart::test_training_equals_the_global_batch[multi_device]",
        "strategy:apart::test_every_process_has_the_same_module[multi_device]",
    }
    assert run.ids("failed") == {"strategy:apart::test_resuming_is_exact[multi_device]"}, run.output
    assert "strategy:apart::test_a_second_run_in_the_same_processes[multi_device]" in run.ids("passed")


@pytest.mark.slow
def test_a_class_with_its_own_arguments(tmp_path: Path) -> None:
    """It is given a name for one run of the kit, as if a package had it."""
    spec = StrategySpec(
        name="one_bucket",
        target="core.strategies:DDPStrategy",
        description="DDP with one bucket",
        init_args={"bucket_cap_mb": 1000},
    )
    said = check_backends("strategy:one_bucket", folder=tmp_path, options=["--tiers=T0,T1"], specs=[spec])
    assert re.search(
        r"^conformance of strategy:one_bucket \(T0, T1\): (\d\d) passed; proven: \1 of \1$", said, re.MULTILINE
    )


def test_a_backend_that_fails_is_an_error(tmp_path: Path) -> None:
    """``check_backends`` raises with what the kit printed."""
    spec = StrategySpec(name="nameless", target="core.strategies:DDPStrategy")
    with pytest.raises(AssertionError, match="description='' of strategy:nameless"):
        check_backends("strategy:nameless", folder=tmp_path, options=["--tiers=T0"], specs=[spec])


@pytest.mark.slow
def test_too_few_passed_tests_are_an_error(tmp_path: Path) -> None:
    """``check_backends`` raises where fewer than ``min_passed`` pass, although none fails."""
    with pytest.raises(AssertionError, match=r"strategy:ddp: 9 tests passed. Expected: at least 10"):
        check_backends("strategy:ddp", folder=tmp_path, options=["--tiers=T0"], min_passed=10)


LONELY = """
import torch

from torch_hal import Accelerator


class LonelyAccelerator(Accelerator):
    unsupported = {"collectives": "its cards know nothing of each other"}

    def is_available(self):
        return True

    def auto_device_count(self):
        return 2

    def get_parallel_devices(self, devices):
        return [torch.device("cpu") for _ in devices]
"""


def test_devices_without_collectives(tmp_path: Path) -> None:
    """A script that names no devices runs on one of two; to request both is what the declaration excuses."""
    (tmp_path / "lonely.py").write_text(LONELY, "utf-8")
    spec = AcceleratorSpec(name="lonely", target="lonely:LonelyAccelerator", description="two cards")
    options = ["--backend-devices=2", "-rs", "-k", "all_devices_are_chosen"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    said = check_backends(
        "accelerator:lonely", folder=tmp_path, options=options, specs=[spec], environ={"PYTHONPATH": path}
    )
    assert "1 passed, 2 skipped" in said
    assert "[2]" in said
    assert "collectives is not supported: its cards know nothing of each other" in said
