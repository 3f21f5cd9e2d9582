"""Whatever takes an optimizer takes the one that 16-mixed hands back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from core.strategies import OptimizerWrapper

from .mixed_loops import STEPS, assert_equal, by_hand, prepared, sgd, with_runtime
from .problem import batch, mse, network, runtime

SCHEDULERS: list[Any] = [
    lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)], milestones=[2]
    ),
    lambda o: SWALR(o, 0.05, anneal_epochs=2),
]


class TestWhatTakesAnOptimizer:
    """Whatever torch has that takes one; warnings are errors."""

    @pytest.mark.filterwarnings("ignore:The epoch parameter in")  # torch 2.6's own SequentialLR
    @pytest.mark.parametrize("before", [True, False])
    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_schedulers(self, scheduler: Any, before: bool) -> None:
        """Made before or after prepare, bit for bit as by hand."""

        def around(optimizer: Optimizer, module: nn.Module) -> Any:
            return scheduler(optimizer).step

        assert_equal(with_runtime(sgd, around, before), by_hand(sgd, around))

    @pytest.mark.parametrize("owner", ["prepared", "own"])
    def test_a_scheduler_of_one_is_not_one_of_the_other(self, owner: str) -> None:
        """What it puts in the place of ``step`` stays with the optimizer that it was made for."""
        optimizer, own, train = prepared()
        before = own.param_groups[0]["params"][0].detach().clone()
        scheduler = lr_scheduler.StepLR(optimizer if owner == "prepared" else own, 1, 0.5)
        train(float("inf"))
        assert torch.equal(own.param_groups[0]["params"][0], before), "the step went past the loss scaling"
        train()
        scheduler.step()
        assert not torch.equal(own.param_groups[0]["params"][0], before)
        assert optimizer.param_groups[0]["lr"] == 0.05

    @pytest.mark.parametrize("before", [True, False])
    def test_a_scheduler_after_a_step_that_was_left_out(self, before: bool) -> None:
        """The optimizer was stepped, so torch's warning about the order would be wrong."""
        module = network()
        own = sgd(module)
        schedulers = [lr_scheduler.StepLR(own, 1)] if before else []
        one = runtime(precision="16-mixed")
        model, optimizer = one.prepare(module, own)
        schedulers = schedulers or [lr_scheduler.StepLR(optimizer, 1)]
        inputs, targets = batch()
        one.backward(mse(model(inputs), targets) * float("inf"))
        optimizer.step()
        schedulers[0].step()

    def test_plateau(self) -> None:
        """The scheduler that asks for a metric."""
        optimizer, own, train = prepared()
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        for metric in (1.0, 2.0):
            train()
            scheduler.step(metric)
        assert own.param_groups[0]["lr"] == 0.05

    def test_hooks(self) -> None:
        """Of the optimizer and of all optimizers: each is called once a step."""
        optimizer, own, train = prepared()
        called: list[Any] = []
        optimizer.register_step_pre_hook(lambda *args: called.append("pre"))
        optimizer.register_state_dict_post_hook(lambda optimizer, state: {**state, "extra": 1})
        handle = register_optimizer_step_post_hook(lambda *args: called.append("global"))
        try:
            train()
        finally:
            handle.remove()
        assert called == ["pre", "global"]
        assert optimizer.state_dict()["extra"] == own.state_dict()["extra"] == 1

    @pytest.mark.parametrize("fused", [True, False])
    def test_the_users_own_gradscaler(self, fused: bool) -> None:
        """It steps a wrapper as it steps the optimizer, also one that unscales by itself."""
        trained = []
        for wrap in (True, False):
            module = network()
            own: Any = Adam(module.parameters(), lr=0.01, fused=fused)
            optimizer = OptimizerWrapper(own, own.step) if wrap else own
            assert getattr(optimizer, "_step_supports_amp_scaling", False) is fused
            scaler = torch.amp.GradScaler("cpu")
            inputs, targets = batch()
            for factor in (1.0, float("inf"), 1.0):
                optimizer.zero_grad()
                loss = mse(module(inputs), targets) * factor
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
            trained.append(list(module.parameters()))
            assert not hasattr(own, "grad_scale")
        assert_equal(*trained)

    def test_averaged_weights(self) -> None:
        """torch's exponential average, with its own scheduler."""
        averaged = []

        def around(optimizer: Optimizer, module: nn.Module) -> Any:
            average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5))  # type: ignore[no-untyped-call]
            scheduler = SWALR(optimizer, 0.05, anneal_epochs=2)
            averaged.append(average)

            def after() -> None:
                average.update_parameters(module)
                scheduler.step()

            return after

        assert_equal(with_runtime(sgd, around), by_hand(sgd, around))
        assert_equal(*(list(average.module.parameters()) for average in averaged))

    def test_the_users_own_wrapper(self) -> None:
        """A class that takes any optimizer and holds it may hold the prepared one."""

        class Counting(Optimizer):
            def __init__(self, inner: Optimizer) -> None:
                self.__dict__.update(vars(inner))
                self.inner, self.steps = inner, 0

            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                self.steps += 1
                self.inner.step()

        module = network()
        one = runtime(precision="16-mixed")
        model, optimizer = one.prepare(module, sgd(module))
        outer = Counting(optimizer)
        inputs, targets = batch()
        for _ in range(STEPS):
            outer.zero_grad()
            one.backward(mse(model(inputs), targets))
            outer.step()
        assert outer.steps == STEPS
        assert not hasattr(optimizer, "steps")
        assert_equal(list(module.parameters()), by_hand(sgd))
