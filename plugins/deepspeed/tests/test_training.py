"""Every stage trains as DDP does, in your own loops and under the Trainer."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_hal_deepspeed import DeepSpeedStrategy
from torch_hal_deepspeed.library import part

import torch_hal

from .conftest import STAGES, run, said

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(600)]

EXACT = 1e-5
"""How far losses in float32 may be apart: sums in another order."""
WORKS = ("", " accumulated", " clipped")


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``loops.py`` says on two processes."""
    out = tmp_path_factory.mktemp("loops")
    ended = run(out, "loops.py", 2)
    return said(out / "said.json") | {"printed": ended.stdout + ended.stderr}


def assert_alike(one: dict[str, Any], other: dict[str, Any], tolerance: float = EXACT) -> None:
    assert one["losses"][-1] != one["losses"][0]
    for kind in ("losses", "evaluated", "afterwards"):
        assert one[kind] == pytest.approx(other[kind], rel=tolerance)


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_trains_as_ddp(loops: dict[str, Any], stage: str, work: str) -> None:
    """Plain, accumulated over two batches, or clipped: losses, evaluation, and a step after it are DDP's."""
    assert_alike(loops[f"stage {stage}{work}"], loops[f"ddp{work}"])
    assert not work or loops[f"stage {stage}{work}"]["losses"] != loops[f"stage {stage}"]["losses"]


@pytest.mark.parametrize("work", ["", " clipped"])
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_offload_trains_as_ddp(loops: dict[str, Any], stage: str, work: str) -> None:
    """With the optimizer, and for stage 3 the parameters, on the host, nothing changes."""
    assert_alike(loops[f"offload {stage}{work}"], loops[f"ddp{work}"])


@pytest.mark.parametrize("name", ["made divided", "persistent", "recomputed 0", "recomputed 1", "recomputed 3"])
def test_other_forms_train_as_ddp(loops: dict[str, Any], name: str) -> None:
    """A model made within init_module(), small parameters kept whole, and activation checkpointing change nothing."""
    assert_alike(loops[name], loops["ddp"])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-mixed", 5e-3), ("bf16-true", 3e-2)])
def test_precision_is_handed_over(loops: dict[str, Any], stage: str, precision: str, tolerance: float) -> None:
    """In 16 bits training goes as under DDP, up to that precision's rounding, and not as in 32 bits."""
    assert_alike(loops[f"stage {stage} {precision}"], loops[f"ddp {precision}"], tolerance)
    assert loops[f"stage {stage} {precision}"]["losses"] != loops[f"stage {stage}"]["losses"]


def test_config_asks_for_precision_and_clipping(loops: dict[str, Any]) -> None:
    """What only the config says holds: 'auto' precision becomes its bf16, and the engine clips as it says."""
    assert loops["config"]["losses"] == pytest.approx(loops["ddp clipped"]["losses"], rel=3e-2)
    assert loops["config"]["losses"] != pytest.approx(loops["ddp clipped"]["losses"], rel=EXACT)
    assert loops["config"]["precision"] == "bf16-true"


@pytest.mark.parametrize(
    ("stage", "kinds"),
    [("1", ["state"]), ("2", ["state", "gradients"]), ("3", ["state", "gradients", "parameters"])],
)
def test_memory_is_a_process_share(loops: dict[str, Any], stage: str, kinds: list[str]) -> None:
    """Of what a stage divides, each process holds at most half of DDP's, and 5 % of the whole; the rest whole.

    The optimizer steps the parameters themselves, and no copies of them.
    """
    whole = loops["bytes ddp"][0]
    for held in loops[f"bytes {stage}"]:
        assert held["copies"] == 0
        for kind in ("state", "gradients", "parameters"):
            if kind in kinds:
                assert 0 < held[kind] <= (1 / 2 + 0.05) * whole[kind]
            else:
                assert held[kind] == whole[kind]


@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_tells_the_parameters_that_are_stepped(stage: int) -> None:
    """Its own functions for a parameter in float32, to read and to write, reach what the optimizer steps."""
    utils = import_module("deepspeed.utils")
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
        own = torch.nn.Linear(4, 2)
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.5))
        utils.safe_set_full_fp32_param(own.weight, torch.ones(2, 4))
        runtime.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        assert own.weight.tolist() == utils.safe_get_full_fp32_param(own.weight).tolist() == [[0.5] * 4] * 2


@pytest.mark.parametrize("front_end", ["runtime", "trainer"])
@pytest.mark.parametrize(("stage", "precision"), [(0, "bf16-true"), (0, "scaled"), (2, "32-true"), (3, "bf16-mixed")])
def test_schedulers_wait_where_the_engine_skips_a_step(stage: int, precision: str, front_end: str) -> None:
    """As it does where gradients are not finite: their rates, and what scripts read, are those of the steps taken.

    Scaled: under 16-mixed, which DeepSpeed has on no CPU, torch's scaler skips steps, and does not tell the engine.
    """
    rates, skipped = [], []
    settings: dict[str, Any] = {"accelerator": "cpu", "strategy": DeepSpeedStrategy(stage=stage), "devices": 1}
    if precision != "scaled":
        settings["precision"] = precision

    class Halved(torch_hal.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if precision == "scaled" and not batch_idx:
                runtime.strategy.engine.torch_autocast_z0_gradscaler = torch.amp.GradScaler("cpu")
            return self.layer(torch.ones(1, 1, dtype=self.layer.weight.dtype)).float().sum() * batch

        def configure_optimizers(self) -> Any:
            self.own = torch.optim.SGD(self.parameters(), lr=1.0)
            schedule = {"scheduler": torch.optim.lr_scheduler.StepLR(self.own, 1, 0.5), "interval": "step"}
            return [self.own], [schedule]

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            rates.append(self.own.param_groups[0]["lr"])
            skipped.append(self.optimizers().step_was_skipped)

    module, factors = Halved(), (1.0, float("inf"), float("inf"), 1.0)
    runtime: Any
    if front_end == "trainer":
        options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        runtime = torch_hal.Trainer(**settings, **options, max_epochs=1)
        runtime.fit(module, list(factors))
    else:
        with torch_hal.Runtime(**settings) as runtime:
            [own], [schedule] = module.configure_optimizers()
            module.layer, optimizer, scheduler = runtime.prepare(module.layer, own, schedule["scheduler"])
            for index, factor in enumerate(factors):
                runtime.backward(module.training_step(factor, index))
                optimizer.step()
                scheduler.step()
                rates.append(own.param_groups[0]["lr"])
                skipped.append(runtime.optimizer_step_was_skipped)
    assert rates == [0.5, 0.5, 0.5, 0.25]
    assert skipped == [False, True, True, False]


class Transposed(nn.Module):
    """Has no parameters, and uses another part's."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.others = [other]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.others[0].weight


@pytest.mark.parametrize("trains", [True, False])
def test_stage_3_gathers_for_parts_with_parameters_alone(trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks do not run at activations. The model is plain torch's, also if such a part uses another's parameter."""
    coordinator = part("runtime.zero.partitioned_param_coordinator").PartitionedParameterCoordinator
    fetch, gathered = coordinator.fetch_sub_module, list[str]()

    def noting(self: Any, each: nn.Module, forward: bool) -> None:
        gathered.append(type(each).__name__)
        fetch(self, each, forward)

    monkeypatch.setattr(coordinator, "fetch_sub_module", noting)

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        first = nn.Linear(4, 8)
        own = nn.Sequential(first, nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Sequential(nn.Tanh()), Transposed(first))
        return own, torch.optim.SGD(own.parameters(), lr=0.1)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, backward: Any) -> list[float]:
        losses = []
        for step in range(4):
            loss = model(torch.ones(3, 4) + step).square().mean()
            if trains:
                backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected = train(*make(), torch.autograd.backward)
    config = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    strategy = DeepSpeedStrategy(stage=3, config=config)
    with torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=1) as runtime:
        own, optimizer = make()
        if trains:
            model, optimizer = runtime.prepare(own, optimizer)
        else:
            model = runtime.prepare(own)
        with nullcontext() if trains else torch.no_grad():
            assert train(model, optimizer, runtime.backward) == pytest.approx(expected, rel=1e-5)
    passes = 2 if trains else 1
    assert Counter(gathered) == {"Sequential": 4 * passes, "Linear": 2 * 4 * passes}


def test_it_is_quiet(loops: dict[str, Any]) -> None:
    """Nothing is printed that the script did not print."""
    assert loops["printed"] == ""


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``trains.py`` has fitted under DDP and each stage, for two epochs, and again from the end of the first."""
    out = tmp_path_factory.mktemp("fits")
    names = ["ddp", *STAGES, "offload"]
    run(out, "trains.py", "whole", 2, *names)
    run(out, "trains.py", "resumed", 2, *names)
    return out


@pytest.mark.parametrize("stage", [*STAGES, "offload"])
def test_the_trainer_trains_as_under_ddp(fits: Path, stage: str) -> None:
    """Accumulating, clipping, with a schedule and dropout, each process's losses and the validation are DDP's."""
    for rank in (0, 1):
        found, expected = (said(fits / f"whole-2-{rank}.json")[name] for name in (stage, "ddp"))
        assert len(found["seen"]) == len(expected["seen"]) > 4
        assert found["seen"] == pytest.approx(expected["seen"], rel=EXACT)
        assert found["loss"] == pytest.approx(expected["loss"], rel=EXACT)
        assert (found["items"], found["steps"]) == (expected["items"], expected["steps"])


@pytest.mark.parametrize("stage", [*STAGES, "offload"])
def test_a_resumed_fit_is_the_uninterrupted_one(fits: Path, stage: str) -> None:
    """From the end of the first epoch, in new processes, every loss of the second is the same bit for bit."""
    for rank in (0, 1):
        whole, resumed = (said(fits / f"{phase}-2-{rank}.json")[stage] for phase in ("whole", "resumed"))
        assert resumed["seen"] == whole["seen"][len(whole["seen"]) // 2 :]
        assert (resumed["loss"], resumed["steps"]) == (whole["loss"], whole["steps"])


def test_a_fit_goes_on_with_another_number_of_processes(fits: Path) -> None:
    """What two processes fitted in an epoch, one fits in the second, with the losses of DDP that does the same."""
    run(fits, "trains.py", "resumed", 1, "ddp", *STAGES, "offload")
    found = said(fits / "resumed-1-0.json")
    assert len(found["ddp"]["seen"]) > 4
    for stage in (*STAGES, "offload"):
        assert found[stage]["seen"] == pytest.approx(found["ddp"]["seen"], rel=EXACT)
        assert found[stage]["loss"] == pytest.approx(found["ddp"]["loss"], rel=EXACT)
        assert found[stage]["steps"] == found["ddp"]["steps"]


def test_modules_are_evaluated_as_under_ddp(tmp_path: Path) -> None:
    """Validating and predicting, of a module that no optimizer knows and of one that a fit has left, are DDP's."""
    run(tmp_path, "trains.py", "evaluated", 2, "ddp", "0", "2", "3")
    for rank in (0, 1):
        found = said(tmp_path / f"evaluated-2-{rank}.json")
        for stage in ("0", "2", "3"):
            for when in ("fresh", "fitted"):
                assert found[stage][when] == pytest.approx(found["ddp"][when], rel=EXACT, abs=EXACT)
        assert found["ddp"]["fresh"] != found["ddp"]["fitted"]
