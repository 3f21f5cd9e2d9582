"""Strategies that take what a module logs through :func:`core.strategies.collect_logs`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

from core import StrategyRegistry
from core.errors import ConfigurationError
from core.strategies import (
    LoggedValue,
    ModuleWrapper,
    SingleDeviceStrategy,
    TrainingStepOptions,
    collect_logs,
    reduce_logged,
)

from .regression import Regression, loader, quiet

StepFunction = Callable[[Any, int, bool], Tensor | None]


class _Halved(ModuleWrapper):
    """Runs each half of a batch in its own thread, and logs every value once."""

    def forward(self, batch: Any, batch_idx: int) -> Any:
        halves = list(zip(*(tensor.tensor_split(2) for tensor in batch), strict=True))
        logged: list[list[LoggedValue]] = [[], []]

        def run(part: Any, values: list[LoggedValue]) -> Any:
            with collect_logs(values.append):
                return self.module(part, batch_idx)

        with ThreadPoolExecutor(2) as pool:
            losses = list(pool.map(run, halves, logged))
        sizes = [len(part[0]) for part in halves]
        for first, second in zip(*logged, strict=True):
            value = reduce_logged([first.value, second.value], sizes, first.reduce_fx)
            attrs.evolve(first, value=value).log()
        return reduce_logged(losses, sizes, "mean")


class Halves(SingleDeviceStrategy):
    """What one plugin does: it splits batches."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return _Halved(super().setup_module(module))

    def inference_module(self, module: nn.Module) -> nn.Module:
        return self.unwrap_module(module)


class Delays(SingleDeviceStrategy):
    """What another plugin does: it logs when the whole step is over."""

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> StepFunction:
        step = super().training_step(forward, options)

        def delayed(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            logged: list[LoggedValue] = []
            with collect_logs(logged.append):
                loss = step(batch, batch_idx, is_step_end)
            for value in logged:
                value.log()
            return loss

        return delayed


class Both(Delays, Halves):
    """One plugin's strategy that builds on another's."""


class Logging(Regression):
    """Logs in every way that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.network[2] = nn.Identity()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        for reduce_fx in ("sum", "min", "max"):
            self.log(reduce_fx, getattr(batch[0], reduce_fx)(), reduce_fx=reduce_fx, on_step=False, on_epoch=True)
        self.log("weighted", batch[0].mean(), batch_size=3, on_epoch=True)
        return loss


def fit(strategy: str) -> dict[str, float]:
    torch.manual_seed(0)
    trainer = quiet(strategy=strategy, max_epochs=2)
    trainer.fit(Logging(), loader(10))
    assert trainer.prog_bar_metrics == {"loss_step", "loss_epoch"}
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_two_plugins_log_through_the_seam() -> None:
    """Each by itself, one after the other, and one within the other: what is logged is that of the plain strategy."""
    StrategyRegistry.register("halves", Halves)
    StrategyRegistry.register("delays", Delays)
    StrategyRegistry.register("both", Both)
    expected = fit("single_device")
    for strategy in ("halves", "delays", "both", "halves"):
        found = fit(strategy)
        assert found.keys() == expected.keys() >= {"loss_epoch", "loss_step", "sum", "min", "max"}, strategy
        assert found == pytest.approx(expected, abs=1e-5), strategy


def test_what_is_collected_is_not_logged() -> None:
    """A value that a strategy keeps for itself reaches no metric; one that is logged twice is there once by name."""
    kept: list[LoggedValue] = []

    class Keeps(Delays):
        def training_step(self, forward: Any, options: TrainingStepOptions) -> StepFunction:
            step = SingleDeviceStrategy.training_step(self, forward, options)

            def keeping(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
                with collect_logs(kept.append):
                    return step(batch, batch_idx, is_step_end)

            return keeping

    StrategyRegistry.register("keeps", Keeps)
    trainer = quiet(strategy="keeps", max_epochs=1)
    trainer.fit(Logging(), loader(10))
    assert trainer.callback_metrics == {}
    assert [value.name for value in kept] == ["loss", "sum", "min", "max", "weighted"] * 5
    assert (kept[4].batch_size, kept[4].reduce_fx, kept[0].options["prog_bar"]) == (3, "mean", True)
    with pytest.raises(ConfigurationError, match=r"log\('loss'\): no epoch or evaluation is running"):
        kept[0].log()


def test_an_error_in_a_step_ends_the_collecting() -> None:
    """A later fit logs as usual."""
    StrategyRegistry.register("delays", Delays)

    class Fails(Logging):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        quiet(strategy="delays", max_epochs=1).fit(Fails(), loader())
    assert "loss_epoch" in fit("single_device")
