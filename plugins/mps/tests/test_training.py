"""Training on the simulated GPU by name, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("acme_driver", reason="needs the simulated devices")

import torch
from device_problem import OPTIONS, Classifier, loader, losses_on_the_cpu, net, optimizer_of
from torch import nn
from torch_hal_mps import MPSAccelerator

from torch_hal import Runtime, Trainer
from torch_hal.errors import ConfigurationError, CoreError, DeviceError

from .conftest import needs_backward, needs_simulation

pytestmark = [needs_simulation, pytest.mark.usefixtures("mac")]


def _distance(losses: list[float], others: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(losses, others, strict=True))


@needs_backward
@pytest.mark.parametrize("accelerator", ["mps", "gpu", "auto"])
def test_the_trainer_trains_to_the_losses_of_the_cpu(accelerator: str) -> None:
    """By name, by alias and by itself: everything lives on the GPU, and the losses are those of the CPU."""
    module = Classifier()
    trainer = Trainer(accelerator=accelerator, **OPTIONS)
    trainer.fit(module, loader())
    assert isinstance(trainer.runtime.strategy.accelerator, MPSAccelerator)
    assert module.seen == {"mps:0"}
    assert _distance(module.losses, losses_on_the_cpu()) <= 1e-6


@needs_backward
def test_an_own_loop_trains_to_the_losses_of_the_cpu() -> None:
    """So does your own loop."""
    losses = []
    with Runtime(accelerator="mps") as runtime:
        module = net()
        module, optimizer, batches = runtime.prepare(module, optimizer_of(module), loader())
        for _ in range(2):
            for inputs, labels in batches:
                loss = nn.functional.cross_entropy(module(inputs), labels)
                optimizer.zero_grad()
                runtime.backward(loss)
                optimizer.step()
                losses.append(loss.item())
        assert {str(parameter.device) for parameter in module.parameters()} == {"mps:0"}
    assert _distance(losses, losses_on_the_cpu()) <= 1e-6


@needs_backward
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "16-true", "bf16-true"])
def test_16_bit_precisions(precision: str) -> None:
    """The precisions of 16 bits that torch has for the type train to about the CPU's losses in 32."""
    module = Classifier()
    Trainer(accelerator="mps", precision=precision, **OPTIONS).fit(module, loader())
    assert _distance(module.losses, losses_on_the_cpu()) < 0.1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"precision": "64-true"}, ConfigurationError, "Metal has no double precision"),
        ({"num_nodes": 2}, ConfigurationError, "a Mac has one GPU"),
        ({"devices": 2}, DeviceError, "2 requested.*available: device 0"),
        ({"devices": [1]}, DeviceError, "no device 1.*available: device 0"),
        ({"devices": 2, "strategy": "ddp"}, DeviceError, "2 requested"),
    ],
    ids=str,
)
@pytest.mark.parametrize("front_end", [Trainer, Runtime])
def test_refusals(
    monkeypatch: pytest.MonkeyPatch, front_end: Any, arguments: dict[str, Any], error: type[CoreError], text: str
) -> None:
    """What a Mac cannot do is refused, with the reason, when it is asked for: before anything starts."""
    for name, value in {"NODE_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)  # what several machines need
    with pytest.raises(error, match=text):
        front_end(accelerator="mps", **arguments)


def test_statistics() -> None:
    """Memory of tensors is counted, and what GPU and host share is told."""
    accelerator = MPSAccelerator()
    before = accelerator.get_device_stats("mps")
    kept = torch.zeros(1 << 20, device="mps")
    stats = accelerator.get_device_stats(torch.device("mps", 0))
    assert stats["memory_allocated_bytes"] - before["memory_allocated_bytes"] == kept.nbytes
    assert stats["memory_reserved_bytes"] >= stats["memory_allocated_bytes"]
    assert stats["memory_recommended_bytes"] == 16 * 2**30  # what the simulated GPU has
    assert stats["host_memory_bytes"] > 2**20


def test_seeds_and_states_of_random_numbers() -> None:
    """``torch.manual_seed`` reaches the GPU, and the generator's state is taken and put back exactly."""
    accelerator, device = MPSAccelerator(), torch.device("mps", 0)
    torch.manual_seed(7)
    first = torch.rand(4, device=device).tolist()
    state = accelerator.get_rng_state(device)
    second = torch.rand(4, device=device).tolist()
    accelerator.set_rng_state(state, device)
    assert torch.rand(4, device=device).tolist() == second
    torch.manual_seed(7)
    assert torch.rand(4, device=device).tolist() == first != second


def test_a_torch_without_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is built without Metal there is no device, whatever the machine is."""
    assert MPSAccelerator().is_available()
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    assert not MPSAccelerator().is_available()
    assert MPSAccelerator().auto_device_count() == 0


def test_forking_has_a_reason() -> None:
    """A process that may use Metal says that it should not be forked."""
    assert "forked" in MPSAccelerator().fork_unsafe_reason()
