"""The stand-in of poptorch against plain torch."""

from __future__ import annotations

import copy
from typing import Any

import poptorch
import pytest
import stand_ins
import torch
from torch import Tensor, nn


class _WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        output = self.net(inputs)
        return output, nn.functional.cross_entropy(output, labels)


def _batch() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    return inputs, inputs[:, :3].argmax(1)


def test_a_step_is_one_on_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas with three accumulated parts take the step that plain SGD takes on the joined batch."""
    model = _WithLoss()
    plain = copy.deepcopy(model)
    monkeypatch.setenv("IPU_DEVICES", "2")
    options = poptorch.Options().replicationFactor(2)
    options.Training.gradientAccumulation(3)
    step = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.5))
    output, loss = step(*_batch())
    assert (output.shape, loss.shape, loss.requires_grad) == ((8, 3), (2,), False)  # each replica's last part
    assert torch.equal(model.net.weight, plain.net.weight)  # the device's are its own
    step.copyWeightsToHost()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    plain(*_batch())[1].backward()
    optimizer.step()
    torch.testing.assert_close(model.net.weight, plain.net.weight)
    step.destroy()


def test_device_iterations_are_steps() -> None:
    """A call with three device iterations takes three steps, one on each third of the batch."""
    model = _WithLoss()
    plain = copy.deepcopy(model)
    options = poptorch.Options().deviceIterations(3)
    step = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.5))
    step(*_batch())
    step.destroy()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for part in zip(*(torch.tensor_split(tensor, 3) for tensor in _batch()), strict=True):
        optimizer.zero_grad()
        plain(*part)[1].backward()
        optimizer.step()
    torch.testing.assert_close(model.net.weight, plain.net.weight)


def test_inference() -> None:
    """Inference gives the results of all parts, without gradients; it compiles once."""
    net = nn.Linear(4, 3)
    stand_ins.calls.clear()
    run = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(4))
    results = [run(_batch()[0]) for _ in range(2)]
    torch.testing.assert_close(results[1], net(_batch()[0]).detach())
    run.destroy()
    assert stand_ins.calls == [
        "Options",
        "Options.deviceIterations(4)",
        "inferenceModel",
        "compile",
        "infer",
        "infer",
        "destroy",
    ]


@pytest.mark.parametrize("batch", [(torch.ones(5, 4),), (torch.ones(4, 4, device="meta"),), (3,)], ids=str)
def test_what_it_refuses(batch: Any) -> None:
    """A batch that can't be split evenly, and what is not a tensor of the host."""
    run = poptorch.inferenceModel(nn.Linear(4, 3), poptorch.Options().deviceIterations(4))
    with pytest.raises((poptorch.Error, TypeError), match=r"equal parts|tensors of the host"):
        run(*batch)


def test_python_runs_once() -> None:
    """What the model's Python does is done when it is compiled; another shape is refused, and destroying recompiles."""

    class Counting(_WithLoss):
        runs = 0

        def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            Counting.runs += 1
            return super().forward(inputs, labels)

    run = poptorch.inferenceModel(Counting())
    for _ in range(3):
        run(*_batch())
    assert Counting.runs == 1
    half = [tensor[:12] for tensor in _batch()]
    with pytest.raises(poptorch.Error, match="don't match"):
        run(*half)
    run.destroy()
    assert run(*half)[0].shape == (12, 3)
    run.destroy()


@pytest.mark.parametrize("library", ["torch", "poptorch"])
def test_state_of_the_optimizer(library: str) -> None:
    """Detaching keeps the momentum of the library's own optimizer, and loses that of torch's."""
    model = _WithLoss()
    plain = copy.deepcopy(model)
    classes: dict[str, Any] = {"torch": torch.optim.SGD, "poptorch": poptorch.optim.SGD}
    step = poptorch.trainingModel(model, None, classes[library](model.parameters(), lr=0.1, momentum=0.9))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        step(*_batch())
        step.detachFromDevice()
        optimizer.zero_grad()
        plain(*_batch())[1].backward()
        optimizer.step()
    step.destroy()
    assert torch.allclose(model.net.weight, plain.net.weight) == (library == "poptorch")


def test_one_model_at_a_time() -> None:
    """IPUs that are attached to one model cannot be attached to another until it lets go."""
    first, second = (poptorch.inferenceModel(_WithLoss()) for _ in range(2))
    first(*_batch())
    with pytest.raises(poptorch.Error, match="acquire"):
        second(*_batch())
    first.detachFromDevice()
    second.attachToDevice()
    second.destroy()
    first.destroy()


def test_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many IPUs as ``IPU_DEVICES`` says."""
    monkeypatch.setenv("IPU_DEVICES", "4")
    assert poptorch.ipuHardwareIsAvailable(4)
    assert not poptorch.ipuHardwareIsAvailable(5)
