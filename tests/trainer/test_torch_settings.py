"""Arguments that change torch's own settings for a run: deterministic, benchmark, detect_anomaly, inference_mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from core import Callback
from core.errors import ConfigurationError, WrongTypeError

from .regression import Regression, loader, quiet

BENCHMARKS = [backend for backend in vars(torch.backends).values() if hasattr(backend, "benchmark")]


class Seen(Callback):
    """Keeps torch's settings at each start of training and test."""

    def __init__(self) -> None:
        self.settings: list[Any] = []

    def _see(self) -> None:
        self.settings.append(
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                {backend.benchmark for backend in BENCHMARKS},
                torch.is_anomaly_enabled(),
            )
        )

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._see()

    def on_test_start(self, trainer: Any, module: Any) -> None:
        self._see()


class NeedsDeterminism(Regression):
    """Fills with ``put_``, of which torch has no deterministic algorithm."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]), accumulate=False)
        return self.loss(batch)


class NotANumber(Regression):
    """Has a loss whose gradient is NaN in its first step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.loss(batch) * 0).sqrt() * 0


class NeedsGradients(Regression):
    """Needs a gradient to evaluate, as an energy's force does."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        with torch.enable_grad():
            inputs = batch[0].clone().requires_grad_()
            (force,) = torch.autograd.grad(self(inputs).sum(), inputs)
        self.log("force", force.norm())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (False, False, {True}, False)),
        ({"deterministic": True}, (True, False, {False}, False)),
        ({"deterministic": "warn", "benchmark": True}, (True, True, {True}, False)),
        ({"benchmark": False, "detect_anomaly": True}, (False, False, {False}, True)),
    ],
)
def test_settings_hold_in_the_run_and_not_longer(
    given: dict[str, Any], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has the settings in every stage, and before and after the run its own."""
    for backend in BENCHMARKS:
        monkeypatch.setattr(backend, "benchmark", True)
    seen, outside = Seen(), Seen()
    trainer = quiet(callbacks=[seen], max_epochs=1, **given)
    outside._see()
    trainer.fit(Regression(), loader())
    outside._see()
    trainer.test(Regression(), loader())
    outside._see()
    assert seen.settings == [expected] * 2
    assert outside.settings == [(False, False, {True}, False)] * 3


def test_deterministic_false_overrides_what_the_process_has() -> None:
    """The default leaves torch's setting as it is; False turns it off for the run."""
    seen = Seen()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        quiet(callbacks=[seen], max_epochs=1).fit(Regression(), loader())
        quiet(callbacks=[seen], max_epochs=1, deterministic=False).fit(Regression(), loader())
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert [settings[:2] for settings in seen.settings] == [(True, True), (False, False)]


def test_an_operation_without_a_deterministic_algorithm() -> None:
    """It is an error or a warning; after the error torch's setting is restored too."""
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        quiet(max_epochs=1, deterministic=True).fit(NeedsDeterminism(), loader())
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.warns(UserWarning, match="does not have a deterministic implementation"):
        quiet(max_epochs=1, deterministic="warn").fit(NeedsDeterminism(), loader())


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
def test_detect_anomaly_names_the_operation() -> None:
    """Backward raises where a gradient is NaN; without it nothing is raised."""
    quiet(max_steps=1).fit(NotANumber(), loader())
    with pytest.raises(RuntimeError, match=r"SqrtBackward0.* returned nan values"):
        quiet(max_steps=1, detect_anomaly=True).fit(NotANumber(), loader())
    assert not torch.is_anomaly_enabled()


def test_without_inference_mode_a_step_may_enable_gradients() -> None:
    """In inference mode torch forbids it."""
    with pytest.raises(RuntimeError, match="does not require grad"):
        quiet().test(NeedsGradients(), loader())
    (values,) = quiet(inference_mode=False).test(NeedsGradients(), loader())
    assert values["force"] > 0


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("deterministic", "yes", ConfigurationError),
        ("benchmark", 1, WrongTypeError),
        ("inference_mode", None, WrongTypeError),
        ("detect_anomaly", "True", WrongTypeError),
    ],
)
def test_wrong_values(name: str, value: Any, error: type[Exception]) -> None:
    """Each is named, with what is valid."""
    with pytest.raises(error, match=f"{name}={value!r}: must be True"):
        quiet(**{name: value})
