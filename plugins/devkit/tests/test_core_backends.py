"""core's own backends pass the kit, with nothing skipped but what they declare, and nothing left out but by reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kit import Run, run_kit

_PRECISIONS = ("64-true", "32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")
_OWN = {"test_it_requires_torch_hal"}
"""What core need not say of itself."""


@pytest.mark.slow
def test_precisions(tmp_path: Path) -> None:
    """The six precisions pass; what is asked of loss scaling alone, or of all others, is skipped by declaration."""
    run = run_kit(tmp_path, *(f"--backend=precision:{name}" for name in _PRECISIONS))
    _check_passed(run, backends=len(_PRECISIONS), least=270)
    lacking = {name.partition("::")[2] for name in run.ids("unsupported")}
    assert lacking == {
        "test_a_step_with_a_closure",
        "test_an_overflow_in_any_group[first]",
        "test_an_overflow_in_any_group[second]",
        "test_an_overflow_is_left_out",
        "test_each_optimizer_is_told_apart",
        "test_gradients_that_are_not_finite_are_seen",
        "test_scaled_gradients_are_not_clipped",
    }
    skipped = {name for name in run.ids("unsupported") if name.startswith("precision:16-mixed::")}
    of_scaling = ("test_a_step_with_a_closure", "test_gradients_that_are_not_finite_are_seen")
    assert skipped == {f"precision:16-mixed::{name}" for name in of_scaling}


@pytest.mark.parametrize(
    "checkpoint_ios",
    [
        pytest.param(("torch",), marks=pytest.mark.slow),
        pytest.param(("async", "safetensors"), marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_checkpoint_ios_and_cluster_environments(checkpoint_ios: tuple[str, ...], tmp_path: Path) -> None:
    """The CheckpointIOs of one process, and the environments of this machine, torchrun and Slurm, pass."""
    names = [f"checkpoint_io:{name}" for name in checkpoint_ios]
    names += [f"cluster_environment:{name}" for name in ("local", "torchelastic", "slurm")]
    run = run_kit(tmp_path, *(f"--backend={name}" for name in names))
    _check_passed(run, backends=len(names), least=90 + 60 * len(checkpoint_ios))
    skipped = {name for name in run.ids("unsupported") if not name.startswith("cluster_environment:local::")}
    assert skipped <= {"checkpoint_io:safetensors::test_views_share_their_memory"}


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("single_device", marks=pytest.mark.slow),
        pytest.param("ddp", marks=pytest.mark.slow),
        pytest.param("ddp_spawn", marks=pytest.mark.exhaustive),
        pytest.param("ddp_fork", marks=pytest.mark.exhaustive),
    ],
)
def test_strategies(tmp_path: Path, strategy: str) -> None:
    """A strategy passes on one process and, where it serves them, on two; its processes are real ones."""
    run = run_kit(tmp_path, f"--backend=strategy:{strategy}", "--tiers=T0,T2,T3")
    _check_passed(run, backends=1, least=60 if strategy == "single_device" else 120)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"], "the kit leaves files where it runs"
    several = {name for name in run.ids("passed") if run.tests[name]["tier"] == "T3"}
    if strategy == "single_device":
        assert not several, "it serves one process"
        reasons = {test["reason"] for test in run.tests.values() if test["tier"] == "T3"}
        assert reasons == {"max_processes=1: it supports one process only"}
    else:
        assert len(several) > 55
        assert not any(run.tests[name]["tier"] == "T3" for name in run.ids("unsupported"))


@pytest.mark.exhaustive
def test_the_cpu_with_two_processes(tmp_path: Path) -> None:
    """The CPU passes on two processes of its default strategy; what only takes an index is skipped."""
    run = run_kit(tmp_path, "--backend=accelerator:cpu", "--tiers=T3")
    _check_passed(run, backends=1, least=60)
    assert {name.partition("::")[2] for name in run.ids("unsupported")} == {
        "test_a_device_by_its_index",
        "test_asking_for_another_device",
        "test_devices_keep_their_order",
        "test_random_state_of_each_device",
        "test_statistics_of_each_device",
    }


def _check_passed(run: Run, backends: int, least: int) -> None:
    assert run.code == 0, run.output
    assert run.ids("failed", "expected_failure", "works_undeclared") == set(), run.output
    assert len(run.report["suites"]) == backends
    assert len(run.ids("passed")) >= least, run.output
    assert {name.partition("::")[2] for name in run.ids("not_run")} <= _OWN, run.output
