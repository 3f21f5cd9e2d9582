"""Training on simulated cards by name."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("stand_ins", reason="needs the stand-ins for Intel's library")

import torch
from device_problem import OPTIONS, Classifier, loader, losses_on_the_cpu, net, optimizer_of
from torch import nn
from torch_hal_hpu import HPUAccelerator, HPUParallelStrategy, SingleHPUStrategy, detect

import torch_hal.random
from torch_hal import Runtime, Trainer
from torch_hal.errors import ConfigurationError

from .conftest import RunScript, needs_backward, needs_simulation

pytestmark = [needs_simulation, pytest.mark.usefixtures("cards")]


def _distance(losses: list[float], others: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(losses, others, strict=True))


@needs_backward
@pytest.mark.parametrize("accelerator", ["hpu", "auto"])
@pytest.mark.parametrize("devices", [1, [0]], ids=str)
def test_the_trainer_trains_to_the_losses_of_the_cpu(accelerator: str, devices: Any) -> None:
    """By name and by itself: everything lives on the card, and the losses are those of the CPU."""
    module = Classifier()
    trainer = Trainer(accelerator=accelerator, devices=devices, **OPTIONS)
    trainer.fit(module, loader())
    assert isinstance(trainer.runtime.strategy, SingleHPUStrategy)
    assert isinstance(trainer.runtime.strategy.accelerator, HPUAccelerator)
    assert module.seen == {"hpu:0"}
    assert _distance(module.losses, losses_on_the_cpu()) <= 1e-6


@needs_backward
def test_an_own_loop_trains_to_the_losses_of_the_cpu() -> None:
    """So does your own loop."""
    losses = []
    with Runtime(accelerator="hpu", devices=1) as runtime:
        module = net()
        module, optimizer, batches = runtime.prepare(module, optimizer_of(module), loader())
        for _ in range(2):
            for inputs, labels in batches:
                loss = nn.functional.cross_entropy(module(inputs), labels)
                optimizer.zero_grad()
                runtime.backward(loss)
                optimizer.step()
                losses.append(loss.item())
    assert _distance(losses, losses_on_the_cpu()) <= 1e-6


@needs_backward
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "16-true"])
def test_16_bit_precisions(precision: str) -> None:
    """The precisions of 16 bits train to about the CPU's losses in 32."""
    module = Classifier()
    Trainer(accelerator="hpu", devices=1, precision=precision, **OPTIONS).fit(module, loader())
    assert _distance(module.losses, losses_on_the_cpu()) < 0.1


@pytest.mark.parametrize("front_end", [Trainer, Runtime])
def test_double_precision_is_refused(front_end: Any) -> None:
    """What Gaudi lacks is refused, with the reason, when it is asked for."""
    with pytest.raises(ConfigurationError, match="Gaudi has no double precision"):
        front_end(accelerator="hpu", devices=1, precision="64-true")


@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_float16_on_the_first_generation(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """A card of the first generation has no float16: refused before anything starts; bfloat16 is not."""
    monkeypatch.setattr(detect, "generation", lambda: "GAUDI")
    with pytest.raises(ConfigurationError, match="'bf16-mixed'"):
        Runtime(accelerator="hpu", devices=1, precision=precision)
    Runtime(accelerator="hpu", devices=1, precision="bf16-mixed")


@pytest.mark.parametrize("strategy", ["hpu_single", "hpu_parallel"])
def test_the_strategies_serve_gaudi_alone(strategy: str) -> None:
    """Another accelerator is refused by name."""
    with pytest.raises(ConfigurationError, match="hpu"):
        Runtime(accelerator="cpu", devices=1, strategy=strategy)


def test_default_strategies() -> None:
    """The accelerator's own, for one card and for several."""
    assert Runtime(accelerator="hpu", devices=1).plan.strategy.name == "hpu_single"
    plan = Runtime(accelerator="hpu").plan
    assert plan.strategy.name == "hpu_parallel"
    assert plan.devices == ("hpu:0", "hpu:1")
    assert isinstance(plan.parts["strategy"], HPUParallelStrategy)


def test_statistics() -> None:
    """The library's statistics under torch-hal's names."""
    accelerator = HPUAccelerator()
    accelerator.import_backend()
    before = accelerator.get_device_stats("hpu:0")
    kept = torch.zeros(1 << 20, device="hpu:0")
    stats = accelerator.get_device_stats(torch.device("hpu", 0))
    assert stats["memory_allocated_bytes"] - before["memory_allocated_bytes"] == kept.nbytes
    assert stats["memory_allocated_peak_bytes"] >= stats["memory_allocated_bytes"]
    assert stats["memory_total_bytes"] - stats["memory_free_bytes"] == stats["memory_allocated_bytes"]


def test_random_state() -> None:
    """Every generator's state is taken and put back together with the card's, exactly."""
    with Runtime(accelerator="hpu", devices=1) as runtime:
        accelerator, device = HPUAccelerator(), runtime.device
        state = torch_hal.random.get_rng_state(accelerator, device)
        drawn = torch.rand(4, device=device).tolist(), torch.rand(4).tolist()
        torch_hal.random.set_rng_state(state, accelerator, device)
        assert (torch.rand(4, device=device).tolist(), torch.rand(4).tolist()) == drawn


def test_forking() -> None:
    """A process that works on a card says that it should not be forked."""
    with Runtime(accelerator="hpu", devices=1) as runtime:
        assert torch.ones(1, device=runtime.device).item() == 1
    assert HPUAccelerator().fork_unsafe_reason() == "a Gaudi card is already in use"


@pytest.mark.parametrize(
    ("case", "environ"),
    [
        ("seeds", {}),
        ("second card", {}),
        ("visible", {"HABANA_VISIBLE_MODULES": "1"}),
        ("bound", {"HLS_MODULE_ID": "1"}),
    ],
)
def test_the_process_and_its_card(run_script: RunScript, case: str, environ: dict[str, str]) -> None:
    """The library is told which module to work on; what contradicts it is refused; seeds reach the card."""
    assert run_script("binding.py", case, **environ) == "as it should be\n"


@needs_backward
@pytest.mark.parametrize(
    ("front_end", "mode"), [("trainer", "1"), ("runtime", "0")], ids=["trainer, lazy", "runtime, eager"]
)
def test_two_cards_equal_ddp_on_the_cpu(run_script: RunScript, front_end: str, mode: str) -> None:
    """Two processes over HCCL train to the losses of DistributedDataParallel on the CPU, a card each."""
    output = run_script("two.py", "auto", front_end, PT_HPU_LAZY_MODE=mode)
    assert "rank 0 equal" in output
    assert "rank 1 equal" in output


@needs_backward
def test_two_cards_of_spawned_processes(run_script: RunScript) -> None:
    """So do processes that a function is run in."""
    output = run_script("spawned.py")
    assert "rank 0 equal" in output
    assert "rank 1 equal" in output
