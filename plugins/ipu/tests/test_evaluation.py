"""Validation, test, prediction, and their turns on the IPUs with training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_hal_ipu.strategy import IPUStrategy

from torch_hal import Trainer

from .problem import OPTIONS, Classifier, apart, by_hand, data, loader


def trainer(**options: Any) -> Trainer:
    """One on two IPUs."""
    return Trainer(**{"accelerator": "ipu", "devices": 2, "max_epochs": 2, **OPTIONS, **options})


def losses(model: nn.Module, items: int) -> tuple[float, float]:
    """The mean loss over all items and how many are right, by hand."""
    inputs, labels = data(items).tensors
    with torch.no_grad():
        output = model(inputs)
    return nn.functional.cross_entropy(output, labels).item(), int((output.argmax(1) == labels).sum())


@pytest.mark.parametrize("items", [64, 69], ids=["even", "uneven"])
def test_validation_and_test(items: int) -> None:
    """Every item counts once, with its weight, also where the last batch cannot be split over the IPUs."""
    module = Classifier()
    expected, right = losses(module.net, items)
    (metrics,) = trainer().validate(module, loader(items))
    assert metrics == {"val_loss": pytest.approx(expected, abs=1e-6), "val_correct": pytest.approx(right)}
    (metrics,) = trainer(strategy=IPUStrategy(device_iterations=2)).test(module, loader(items))
    assert metrics == {"test_loss": pytest.approx(expected, abs=1e-6)}


def test_prediction() -> None:
    """What ``predict_step`` returns keeps its structure; its tensors are those of the whole batch, in order."""
    module = Classifier()
    outputs = trainer().predict(module, loader(40))
    with torch.no_grad():
        expected = module.net(data(40).tensors[0])
    assert [len(output["output"]) for output in outputs] == [16, 16, 8]
    torch.testing.assert_close(torch.cat([output["output"] for output in outputs]), expected)
    assert torch.equal(torch.cat([output["best"][0] for output in outputs]), expected.argmax(1))
    assert {output["best"][1] for output in outputs} == {"as it is"}


def test_turns_of_training_and_validation(calls: list[str]) -> None:
    """Each epoch's validation sees its weights; the two steps take turns, momentum and all, each compiled once."""
    module, plain = Classifier(), Classifier().net
    run = trainer()
    run.fit(module, loader(32), loader(64))
    by_hand(plain, items=32)
    assert apart(module.net, plain) <= 1e-6
    assert float(run.callback_metrics["val_loss"]) == pytest.approx(losses(plain, 64)[0], abs=1e-6)
    turns = [
        call for call in calls if call in ("compile", "step", "infer", "attachToDevice", "detachFromDevice", "destroy")
    ]
    assert turns == [
        *["compile", "step", "step", "detachFromDevice"],
        *["compile", "infer", "infer", "infer", "infer", "detachFromDevice"],
        *["step", "step", "detachFromDevice"],
        *["infer", "infer", "infer", "infer", "detachFromDevice"],
        *["destroy", "destroy"],
    ]


def test_modes() -> None:
    """Evaluation is compiled in evaluation mode, and training in training mode, whichever comes first."""

    class WithDropout(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.net.insert(2, nn.Dropout(0.9))

    module = WithDropout()
    run = trainer(max_epochs=1, devices=1)
    run.fit(module, loader(32), loader(32))
    assert float(run.callback_metrics["val_loss"]) == pytest.approx(losses(module.net.eval(), 32)[0], abs=1e-6)
