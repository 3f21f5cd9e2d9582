"""A Module that overrides parts of the Trainer's step: each is called, with the result of the loop written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from core import Module, Trainer
from core.errors import ConfigurationError
from core.precisions.mixed import MixedPrecision
from core.strategies import SingleDeviceStrategy
from core.strategies.training_step import TrainingStep, TrainingStepOptions

from .regression import Regression, assert_same, loader, quiet


def trained(make: Callable[[], Regression], **settings: Any) -> Regression:
    torch.manual_seed(3)
    module = make()
    quiet(max_epochs=2, **settings).fit(module, loader())
    return module


class Overriding(Regression):
    """Overrides everything, and does in each what the Trainer does; notes the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.calls.append(f"step {batch_idx}")
        return super().training_step(batch, batch_idx)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        assert isinstance(optimizer, SGD)
        assert optimizer.optimizer is self.trainer.optimizers[0]  # type: ignore[attr-defined]
        self.calls.append(f"optimizer_step {epoch} {batch_idx}")
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        self.calls.append("zero_grad")
        optimizer.zero_grad()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.calls.append("backward")
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        self.calls.append(f"clip {gradient_clip_val} {gradient_clip_algorithm}")
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        self.calls.append("before zero_grad")

    def on_before_backward(self, loss: Tensor) -> None:
        self.calls.append("before backward")

    def on_after_backward(self) -> None:
        self.calls.append("after backward")

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.calls.append("before step")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_clip_val": 0.1},
        {"accumulate_grad_batches": 3, "gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"precision": "16-mixed", "gradient_clip_val": 0.1},
        {"precision": "16-mixed", "accumulate_grad_batches": 2},
        {"precision": "bf16-mixed"},
    ],
)
def test_the_same_bits(settings: dict[str, Any]) -> None:
    """Overrides that do what the Trainer does change nothing."""
    assert_same(trained(Overriding, **settings), trained(Regression, **settings))


def test_the_order_of_the_parts() -> None:
    """Forward, clearing and backward within ``optimizer_step``; without it in batches that only accumulate."""
    module = Overriding()
    quiet(max_epochs=1, limit_train_batches=2, accumulate_grad_batches=2, gradient_clip_val=0.5).fit(module, loader())
    backward = ["before backward", "backward", "after backward"]
    assert module.calls == [
        *("step 0", "before zero_grad", "zero_grad", *backward),
        *("optimizer_step 0 1", "step 1", *backward, "before step", "clip 0.5 norm"),
    ]


class WarmsUp(Regression):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (self.global_step + 1) / 5)
        optimizer.step(closure=optimizer_closure)


def test_a_learning_rate_that_warms_up() -> None:
    """As by hand."""
    module = trained(WarmsUp)
    torch.manual_seed(3)
    expected = Regression()
    optimizer = expected.configure_optimizers()
    steps = 0
    for _ in range(2):
        for batch in loader():
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * min(1.0, (steps + 1) / 5)
            optimizer.zero_grad()
            expected.loss(batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
    assert_same(module, expected)


class EveryOther(Regression):
    """Steps in every other batch, and only computes gradients in the others, as Lightning's documentation shows."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if batch_idx % 2 == 0:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


def test_a_step_that_is_left_out() -> None:
    """Its gradients are cleared by the next batch."""
    module = trained(EveryOther)
    torch.manual_seed(3)
    expected = Regression()
    optimizer = expected.configure_optimizers()
    for _ in range(2):
        for index, batch in enumerate(loader()):
            optimizer.zero_grad()
            expected.loss(batch).backward()  # type: ignore[no-untyped-call]
            if index % 2 == 0:
                optimizer.step()
    assert_same(module, expected)


class Forgets(Regression):
    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Without the closure, there is no training step."""


def test_a_closure_that_is_not_called() -> None:
    """Is an error that says what to do."""
    with pytest.raises(ConfigurationError, match=r"optimizer_step: the closure was not called.*optimizer_closure"):
        trained(Forgets)


class Norms(Regression):
    """Reads the gradients that the step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        self.norms.append(float(nn.utils.get_total_norm(gradients)))


def test_gradients_are_unscaled_before_the_hook() -> None:
    """Under 16-mixed the norms are those of 32-true, and not clipped yet."""
    small = MixedPrecision("float16", scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
    plain, scaled = trained(Norms, gradient_clip_val=0.01), trained(Norms, gradient_clip_val=0.01, precision=small)
    assert isinstance(plain, Norms)
    assert isinstance(scaled, Norms)
    assert len(plain.norms) == 14
    assert min(plain.norms) > 0.02
    assert scaled.norms == pytest.approx(plain.norms, rel=0.05)


class WithLBFGS(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.5)


class SAM(SGD):
    """Needs its closure twice in a step."""

    def step(self, closure: Any = None) -> Any:
        assert closure is not None
        with torch.enable_grad():
            closure()
        moved = [(p, p.grad.clone()) for group in self.param_groups for p in group["params"]]
        with torch.no_grad():
            for parameter, gradient in moved:
                parameter.add_(gradient, alpha=0.1)
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for parameter, gradient in moved:
                parameter.sub_(gradient, alpha=0.1)
        super().step()
        return loss


class WithSAM(WithLBFGS):
    def configure_optimizers(self) -> Any:
        return SAM(self.parameters(), lr=0.05)


class NoGradients(SGD):
    """As many optimizers outside of torch, it runs its whole step without gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is not None
        loss = closure()
        super().step()
        return loss


class WithNoGradients(WithLBFGS):
    def configure_optimizers(self) -> Any:
        return NoGradients(self.parameters(), lr=0.05)


@pytest.mark.parametrize("make", [WithLBFGS, WithSAM, WithNoGradients])
def test_optimizers_that_call_the_closure_themselves(make: type[WithLBFGS]) -> None:
    """LBFGS, and a class of the user's: as by hand."""
    module = trained(make)
    torch.manual_seed(3)
    expected = make()
    optimizer = expected.configure_optimizers()
    for _ in range(2):
        for batch in loader():

            def closure(batch: Any = batch) -> Tensor:
                with torch.enable_grad():
                    optimizer.zero_grad()
                    loss = expected.loss(batch)
                    loss.backward()  # type: ignore[no-untyped-call]
                return loss

            optimizer.step(closure)
    assert_same(module, expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accumulate_grad_batches": 2}, "LBFGS evaluates the loss several times"),
        ({"precision": "16-mixed"}, "closure, whose loss torch cannot scale"),
    ],
)
def test_what_a_closure_cannot_be_combined_with(settings: dict[str, Any], said: str) -> None:
    """Is refused by name."""
    with pytest.raises(ConfigurationError, match=said):
        trained(WithLBFGS, **settings)


class WholeStep(SingleDeviceStrategy):
    """Runs the whole step by itself."""

    def training_step(self, forward: Any, options: TrainingStepOptions) -> TrainingStep:
        def step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            return None

        return step


class OwnBackward(SingleDeviceStrategy):
    """Computes gradients by itself."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("strategy", "make", "said"),
    [
        (WholeStep, Norms, "runs the whole training step by itself, so 'on_before_optimizer_step' would not be used"),
        (WholeStep, WithLBFGS, "so the closure of LBFGS would not be used"),
        (OwnBackward, Overriding, "overrides 'backward', but strategy"),
    ],
)
def test_strategies_that_own_a_part_refuse_it(strategy: Any, make: type[Module], said: str) -> None:
    """By name, before the first batch."""
    trainer = Trainer(
        strategy=strategy(accelerator="cpu"), max_epochs=1, enable_progress_bar=False, enable_checkpointing=False
    )
    with pytest.raises(ConfigurationError, match=said):
        trainer.fit(make(), loader())


class Contradicting(Regression):
    def configure_gradient_clipping(self, optimizer: Optimizer, *args: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.25)


def test_two_limits_are_refused() -> None:
    """One in the Trainer and another in the call."""
    with pytest.raises(ConfigurationError, match=r"gradient_clip_val=0\.25, but the Trainer has"):
        trained(Contradicting, gradient_clip_val=0.5)
