"""What a fit shows of its module."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from core import Trainer
from core.callbacks import ModelSummary
from core.callbacks.display.model_summary import number_of, summarize
from core.errors import ConfigurationError

from .regression import Regression, assert_same, loader, quiet


class Parts(Regression):
    """A frozen layer, a part in evaluation mode, a parameter outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(10, 100).requires_grad_(False)
        self.narrow = nn.Linear(3, 5, bias=False, dtype=torch.bfloat16).eval()
        self.scale = nn.Parameter(torch.ones(7))


def test_the_table(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """By default a fit writes it to the error stream: 6 * 16 + 16 + 16 + 1 = 129 parameters in the network."""
    caplog.set_level(logging.WARNING, logger="torch_hal.callbacks.display.model_summary")
    Trainer(
        accelerator="cpu",
        devices=1,
        fast_dev_run=True,
        enable_progress_bar=False,
        callbacks=[summary := ModelSummary()],
    ).fit(Parts(), loader())
    out, err = capsys.readouterr()
    assert out == ""
    assert summary.summary is not None
    assert err == f"single_device on cpu, 32-true; details: print(trainer.plan)\n\n{summary.summary}\n\n"
    rows = [[cell.strip() for cell in line.split("|")] for line in err.split("\n") if "|" in line]
    assert rows == [
        ["", "Name", "Type", "Params", "Trainable", "Mode"],
        ["0", "network", "Sequential", "129", "100%", "train"],
        ["1", "frozen", "Linear", "1.1 K", "0%", "train"],
        ["2", "narrow", "Linear", "15", "100%", "eval"],
        ["", "(its own)", "parameters", "7", "100%", ""],
    ]
    assert "0.005 " in err  # 4 * (129 + 1100 + 7) + 2 * 15 bytes


def test_depth() -> None:
    """Levels by the dots in their names; modes are those of the layers."""
    module = Parts()
    assert [layer.name for layer in summarize(module, 1).layers][:-1] == ["network", "frozen", "narrow"]
    whole = summarize(module, -1)
    assert [layer.name for layer in whole.layers][:6] == ["network", *(f"network.{n}" for n in range(4)), "frozen"]
    assert [layer.training for layer in whole.layers][-2:] == [False, None]
    assert (whole.parameters, whole.trainable, whole.size) == (1251, 151, 4 * 1236 + 2 * 15)
    assert (whole.modules_training, whole.modules_evaluating) == (7, 1)


def test_shared_meta_and_lazy_parameters() -> None:
    """A shared one counts once, one on the meta device by its shape; one without a shape is mentioned."""
    first = nn.Linear(4, 4, device="meta")
    tied = nn.ModuleDict({"first": first, "second": nn.Sequential(first)})
    summary = summarize(tied)
    assert summary.parameters == 20
    assert [layer.parameters for layer in summary.layers] == [20, 20]
    lazy = summarize(nn.Sequential(nn.LazyLinear(3), nn.Linear(2, 2)))
    assert lazy.parameters == 6
    assert "2 parameters that have no shape" in str(lazy)


def test_flops_have_no_effect() -> None:
    """A matrix product of (5, 6) and (6, 16) takes 2 * 5 * 6 * 16 operations; the training is as without it."""

    class Draws(Regression):
        example_input_array: Any = torch.zeros(5, 6)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            torch.rand(1)
            self.log("forward", 1.0)
            return super().forward(inputs)

    class WithoutExample(Draws):
        example_input_array = None

    callback, modules = ModelSummary(max_depth=2), []
    for kind in (Draws, WithoutExample):
        torch.manual_seed(0)
        modules.append(kind())
        quiet(max_epochs=1, callbacks=[callback], enable_model_summary=True).fit(modules[-1], loader())
        if kind is Draws:
            assert callback.summary is not None
            flops = {layer.name: layer.flops for layer in callback.summary.layers}
            assert flops["network.0"] == 2 * 5 * 6 * 16
            assert flops["network"] == callback.summary.flops == 2 * 5 * 6 * 16 + 2 * 5 * 16
            assert "Total FLOPs" in str(callback.summary)
    assert_same(*modules)
    assert callback.summary is not None
    assert callback.summary.flops is None


@pytest.mark.parametrize("inputs", [(torch.zeros(1, 6),), {"inputs": torch.zeros(1, 6)}])
def test_examples_of_several_arguments(inputs: Any) -> None:
    """A tuple is passed by position, a dict by keyword."""
    module, callback = Regression(), ModelSummary()
    module.example_input_array = inputs
    quiet(max_epochs=1, callbacks=callback, enable_model_summary=True).fit(module, loader())
    assert callback.summary is not None
    assert callback.summary.flops == 2 * 6 * 16 + 2 * 16


def test_logging_that_shows_information_gets_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Then it is not written a second time."""
    with caplog.at_level(logging.INFO, logger="torch_hal.callbacks.display.model_summary"):
        quiet(max_epochs=1, enable_model_summary=True).fit(Regression(), loader())
    assert "network" in caplog.text
    assert capsys.readouterr().err == ""


def test_who_shows_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is ruled out, depth 0, stages other than fit, processes other than the first."""
    quiet(max_epochs=1).fit(Regression(), loader())
    quiet(max_epochs=1, callbacks=ModelSummary(0), enable_model_summary=True).fit(Regression(), loader())
    quiet(enable_model_summary=True).validate(Regression(), loader())
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda self: False))
    quiet(max_epochs=1, enable_model_summary=True).fit(Regression(), loader())
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigurationError, match="max_depth=-2: must be an integer ≥ -1"):
        ModelSummary(-2)


def test_numbers_for_people() -> None:
    """Three digits and a unit."""
    assert [number_of(count) for count in (0, 999, 1000, 25_557_032, 999_999, 7 * 10**12)] == [
        "0", "999", "1.0 K", "25.6 M", "1.0 M", "7.0 T",
    ]  # fmt: skip
