"""Modules that call backward and step their optimizers themselves, compared with DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .conftest import SCRIPTS, horovodrun, run_alone


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What both strategies gave, each in one pair of processes."""
    folder = tmp_path_factory.mktemp("manual")
    run_alone(SCRIPTS / "manual.py", "ddp", folder / "ddp.pt", warnings="error")
    horovodrun("manual.py", "horovod", folder / "horovod.pt")
    return {name: torch.load(folder / f"{name}.pt") for name in ("ddp", "horovod")}


@pytest.mark.parametrize(
    ("name", "within"), [("32-true", 1e-6), ("16-mixed", 1e-5), ("predivided", 1e-6), ("fp16", 5e-3)]
)
def test_a_gan_is_that_of_ddp(said: dict[str, Any], name: str, within: float) -> None:
    """Two optimizers, toggled, several backward passes in a step, one not exchanged, parameters of one process."""
    ours, theirs = said["horovod"][name], said["ddp"][name]
    assert torch.equal(*ours["all parameters"]), "the processes differ"
    assert ours["steps"] == theirs["steps"] == 2 * 2 * 5
    assert float((ours["parameters"] - theirs["parameters"]).abs().max()) <= within


def test_compression_has_an_effect(said: dict[str, Any]) -> None:
    """Gradients sent in float16 do not give the same bits."""
    parameters = [said["horovod"][name]["parameters"] for name in ("32-true", "fp16")]
    assert not torch.equal(*parameters)


def test_a_fixed_number_of_passes_is_refused(said: dict[str, Any]) -> None:
    """The message says what to leave out."""
    assert "backward_passes_per_step=2 has no effect with manual optimization" in said["horovod"]["passes"]


def test_horovod_does_not_start_again_after_a_failure(said: dict[str, Any]) -> None:
    """It would take a stale address now and then, and abort."""
    assert "a run before this one failed in this process" in said["horovod"]["after a failure"]
