"""The Trainer with every algorithm: accumulation, clipping, validation, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_hal_bagua import BaguaStrategy

from torch_hal import Module, Trainer
from torch_hal.errors import ConfigurationError

from .groups import run_group
from .trainer_cases import ALGORITHMS, EQUAL_RANKS, EXACT

States = dict[str, list[dict[str, torch.Tensor]]]
"""By algorithm, and then by rank."""


def _states(out: Path, phase: str, *arguments: str) -> States:
    run_group(out, "trainer.py", phase, *arguments, processes=2)
    ranks = [torch.load(out / f"{phase}{rank}.pt") for rank in range(2)]
    return {name: [rank[name] for rank in ranks] for name in ALGORITHMS}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="module")
def whole(out: Path) -> States:
    return _states(out, "whole", "")


@pytest.fixture(scope="module")
def resumed(out: Path, whole: States) -> States:
    return _states(out, "resumed", str(out / "whole"))


def _assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_gradient_allreduce_is_ddp(whole: States) -> None:
    """gradient_allreduce gives the same bits as DistributedDataParallel."""
    for rank in range(2):
        _assert_same(whole["gradient_allreduce"][rank], whole["ddp"][rank])


def test_manual_optimization_is_ddp(whole: States, out: Path) -> None:
    """With gradient_allreduce a module may step two optimizers itself; weights are those of ddp, bit for bit."""
    for rank in range(2):
        ddp, bagua = torch.load(out / f"manual{rank}.pt")
        _assert_same(ddp, bagua)


@pytest.mark.parametrize("options", [{"algorithm": "bytegrad"}, {"average": False}, {"algorithm": "async"}])
def test_manual_optimization_needs_the_plain_average(options: dict[str, Any]) -> None:
    """Other algorithms exchange once in each step; the error names what to set."""

    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None: ...

        def configure_optimizers(self) -> None: ...

    trainer = Trainer(accelerator="cpu", devices=1, strategy=BaguaStrategy(**options), enable_progress_bar=False)
    with pytest.raises(ConfigurationError, match=r"manual optimization.*Set algorithm='gradient_allreduce'"):
        trainer.fit(Manual(), [1])


@pytest.mark.parametrize("name", ["ddp", *EQUAL_RANKS])
def test_parameters_agree(whole: States, name: str) -> None:
    """Where gradients are averaged, all processes have the same weights, whatever each began with."""
    parameters = [{k: v for k, v in state.items() if "weight" in k or "bias" in k} for state in whole[name]]
    _assert_same(*parameters)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("ddp", *EQUAL_RANKS)])
def test_weights_stay_near(whole: States, name: str) -> None:
    """Where weights are averaged, they differ between processes, and by little."""
    one, other = (state["net.0.weight"] for state in whole[name])
    assert (one - other).abs().max() < 0.1
    assert name == "async" or not torch.equal(one, other)  # it may have averaged after the last step


@pytest.mark.parametrize("name", EXACT)
def test_resume_is_exact(whole: States, resumed: States, name: str) -> None:
    """A run that goes on from an epoch's checkpoint in new processes ends with the bits of the uninterrupted one."""
    for rank in range(2):
        _assert_same(whole[name][rank], resumed[name][rank])


def test_async_resumes(resumed: States) -> None:
    """async, which no two runs of are alike, goes on from its checkpoint too."""
    assert all(torch.isfinite(state["net.0.weight"]).all() for state in resumed["async"])
