"""16-mixed: the loss is scaled, infinite gradients are left out, and the scale moves as torch's own loop moves it."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core import Runtime
from core.errors import ConfigurationError
from core.precisions import MixedPrecision


def connected(**scaler_options: Any) -> MixedPrecision:
    precision = MixedPrecision("float16", scaler=torch.amp.GradScaler("cpu", **scaler_options))
    precision.connect("cpu")
    return precision


def scale_of(precision: MixedPrecision) -> float:
    return float(precision.state_dict()["scale"])


def parameter() -> tuple[nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(2))
    return weight, torch.optim.SGD([weight], lr=0.5)


def test_gradients_are_scaled_until_the_step() -> None:
    """Backward gives gradients times the scale; the step applies them without it."""
    precision = connected(init_scale=1024.0)
    weight, optimizer = parameter()
    precision.backward(weight.sum())
    assert weight.grad is not None
    assert weight.grad.tolist() == [1024.0, 1024.0]
    precision.optimizer_step(optimizer)
    assert weight.tolist() == [0.5, 0.5]


def test_a_step_with_an_infinite_gradient_is_left_out_and_halves_the_scale() -> None:
    """Parameters stay, the scale backs off, and the next finite step is taken at its right size."""
    precision = connected(init_scale=1024.0)
    weight, optimizer = parameter()
    precision.backward(weight.sum() * math.inf)
    assert precision.optimizer_step(optimizer) is None
    optimizer.zero_grad()
    assert weight.tolist() == [1.0, 1.0]
    precision.backward(weight.sum())
    precision.optimizer_step(optimizer)
    assert weight.tolist() == [0.5, 0.5]
    assert scale_of(precision) == 512.0


def test_the_scale_grows_after_finite_steps() -> None:
    """As many finite steps as the growth interval says double it."""
    precision = connected(init_scale=4.0, growth_interval=2)
    weight, optimizer = parameter()
    scales = []
    for _ in range(4):
        precision.backward(weight.sum())
        precision.optimizer_step(optimizer)
        optimizer.zero_grad()
        scales.append(scale_of(precision))
    assert scales == [4.0, 8.0, 8.0, 16.0]


@pytest.mark.parametrize("infinite", [None, 0, 1])
def test_two_optimizers_after_one_backward_pass_equal_torch(infinite: int | None) -> None:
    """Both are unscaled by the scale of their loss, even where the first one's step changes the scale."""

    def losses() -> tuple[list[nn.Parameter], list[torch.optim.Optimizer], Tensor, Tensor]:
        weights = [nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([2.0]))]
        optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
        factors = [math.inf if index == infinite else 1.0 for index in range(2)]
        first = sum((w.sum() * f for w, f in zip(weights, factors, strict=True)), torch.zeros(()))
        return weights, optimizers, first, sum((w.sum() for w in weights), torch.zeros(()))

    expected, optimizers, first, second = losses()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    for loss in (first, second):
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()

    weights, optimizers, first, second = losses()
    precision = connected(init_scale=64.0, growth_interval=1)
    for loss in (first, second):
        precision.backward(loss)
        for optimizer in optimizers:
            precision.optimizer_step(optimizer)
        for optimizer in optimizers:
            optimizer.zero_grad()

    assert [w.tolist() for w in weights] == [w.tolist() for w in expected]
    assert precision.state_dict() == scaler.state_dict()


def test_optimizers_with_a_backward_pass_each_update_the_scale_in_between() -> None:
    """As in adversarial training: a pass and a step of one, then a pass and a step of the other."""
    precision = connected(init_scale=4.0, growth_interval=1)
    pairs = [parameter(), parameter()]
    for weight, optimizer in pairs:
        precision.backward(weight.sum())
        precision.unscale_gradients(optimizer)
        precision.optimizer_step(optimizer)
    assert [weight.tolist() for weight, _ in pairs] == [[0.5, 0.5]] * 2
    assert scale_of(precision) == 16.0


@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("is_clipped", [False, True])
def test_gradients_that_wait_for_another_step_follow_the_scale(infinite: bool, is_clipped: bool) -> None:
    """One optimizer steps after each loss, which moves the scale, and the other after two: at their true size."""
    precision = connected(init_scale=64.0, growth_interval=1)
    (quick, each), (slow, rare) = parameter(), parameter()
    for optimizer in (each, rare):
        precision.prepare_optimizer(optimizer)
    for number in range(2):
        precision.backward(slow.sum() / 4)
        precision.backward(quick.sum() * (math.inf if infinite and not number else 1.0))
        if is_clipped and number == 1:
            precision.unscale_gradients(rare)
            precision.clip_gradients([slow], 0.25, algorithm="value")
        precision.optimizer_step(each)
        each.zero_grad()
    precision.backward(quick.sum())
    precision.optimizer_step(rare)
    assert slow.tolist() == ([0.875] * 2 if is_clipped else [0.75] * 2)
    assert quick.tolist() == ([0.5] * 2 if infinite else [0.0] * 2)


@pytest.mark.parametrize("steps", [1, 2])
def test_two_models_that_take_turns_equal_plain_torch(steps: int) -> None:
    """Adversarial training with a Runtime: the loss of one also gives the other gradients, which wait for its step."""

    def models() -> list[Any]:
        torch.manual_seed(0)
        nets = [nn.Linear(2, 2), nn.Linear(2, 1)]
        return [*nets, *(torch.optim.SGD(net.parameters(), lr=0.05) for net in nets)]

    def losses(maker: Any, critic: Any, batch: Tensor) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        return (
            lambda: critic(batch).mean() - critic(maker(batch).detach()).mean(),
            lambda: (critic(maker(batch)) - 1).square().mean(),
        )

    def turn(optimizer: Any, loss: Tensor, backward: Callable[[Tensor], None], is_last: bool) -> None:
        backward(loss)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

    torch.manual_seed(1)
    batches = torch.randn(6, 4, 2)
    expected = models()
    for number, batch in enumerate(batches):
        for index, loss in enumerate(losses(expected[0], expected[1], batch)):
            turn(expected[3 - index], loss() / steps, Tensor.backward, (number + 1) % steps == 0)

    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    runtime = Runtime(
        accelerator="cpu",
        devices=1,
        precision=MixedPrecision("float16", scaler=scaler),
        gradient_accumulation_steps=steps,
    )
    with runtime:
        prepared: list[Any] = list(runtime.prepare(*models()))
        for batch in batches:
            with runtime.accumulate(*prepared[:2]):
                for index, loss in enumerate(losses(prepared[0], prepared[1], batch)):
                    turn(prepared[3 - index], loss(), runtime.backward, True)
        for model, truth in zip(prepared[:2], expected[:2], strict=True):
            for parameter, other in zip(model.parameters(), truth.parameters(), strict=True):
                torch.testing.assert_close(parameter.detach(), other.detach(), atol=2e-3, rtol=0)


def test_gradients_accumulate_at_one_scale() -> None:
    """Several backward passes before one step add up at their true size."""
    precision = connected(init_scale=4.0, growth_interval=1)
    weight, optimizer = parameter()
    for _ in range(2):
        precision.backward(weight.sum() / 4)
        precision.backward(weight.sum() / 4)
        precision.optimizer_step(optimizer)
        optimizer.zero_grad()
    assert weight.tolist() == [0.5, 0.5]


def test_unscaling_again_within_a_step_does_nothing() -> None:
    """Unscaling to clip, to log, and by the step itself divides once."""
    precision = connected(init_scale=1024.0)
    weight, optimizer = parameter()
    precision.backward(weight.sum())
    for _ in range(3):
        precision.unscale_gradients(optimizer)
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 1.0]
    precision.clip_gradients([weight], 0.5, algorithm="value")
    precision.optimizer_step(optimizer)
    assert weight.tolist() == [0.75, 0.75]


def test_unscaling_between_backward_passes_of_one_step_is_refused() -> None:
    """Else scaled and unscaled gradients would be added in silence."""
    precision = connected()
    weight, optimizer = parameter()
    precision.backward(weight.sum())
    precision.unscale_gradients(optimizer)
    precision.backward(weight.sum())
    with pytest.raises(ConfigurationError, match="last backward pass"):
        precision.unscale_gradients(optimizer)


def test_clipping_scaled_gradients_is_refused() -> None:
    """A limit means nothing to gradients that are 65536 times too large."""
    precision = connected()
    weight, _ = parameter()
    precision.backward(weight.sum())
    with pytest.raises(ConfigurationError, match="unscale_gradients"):
        precision.clip_gradients([weight], 1.0)


def test_a_closure_is_refused() -> None:
    """torch's scaler cannot serve it; the message names the precisions that can."""
    precision = connected()
    weight, optimizer = parameter()
    precision.backward(weight.sum())
    with pytest.raises(ConfigurationError, match=r"closure.*'bf16-mixed'"):
        precision.optimizer_step(optimizer, lambda: None)


def test_a_step_without_a_scaled_loss_is_refused() -> None:
    """A loss that went past the precision would be unscaled though never scaled: at first, and at any later step."""
    precision = connected()
    weight, optimizer = parameter()
    weight.sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigurationError, match="scaled loss"):
        precision.optimizer_step(optimizer)
    precision.backward(weight.sum())
    precision.optimizer_step(optimizer)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigurationError, match="scaled loss"):
        precision.optimizer_step(optimizer)


def test_an_optimizer_without_gradients_takes_its_step_as_in_any_precision() -> None:
    """Nothing happens to its parameters, and the scale goes on with the other optimizer's."""
    precision = connected(init_scale=4.0, growth_interval=1)
    weight, optimizer = parameter()
    idle, idle_optimizer = parameter()
    precision.backward(weight.sum())
    precision.optimizer_step(idle_optimizer)
    precision.optimizer_step(optimizer)
    assert (weight.tolist(), idle.tolist(), scale_of(precision)) == ([0.5, 0.5], [1.0, 1.0], 8.0)


def test_a_resumed_scale_goes_on_bit_for_bit() -> None:
    """State taken after a step, through a pickle, continues as if nothing had happened."""

    def run(precision: MixedPrecision, factors: list[float]) -> list[dict[str, Any]]:
        weight, optimizer = parameter()
        states = []
        for factor in factors:
            precision.backward(weight.sum() * factor)
            precision.optimizer_step(optimizer)
            optimizer.zero_grad()
            states.append(precision.state_dict())
        return states

    factors = [1.0, math.inf, 1.0, 1.0, 1.0, math.inf, 1.0]
    whole = run(connected(growth_interval=2), factors)
    resumed = connected()
    resumed.load_state_dict(pickle.loads(pickle.dumps(whole[2])))
    assert run(resumed, factors[3:]) == whole[3:]
    assert len({state["scale"] for state in whole}) == 2


def test_state_of_another_precision_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Going on in another precision works, and says that the loss scale starts again or is not used."""
    fp16 = connected(init_scale=8.0)
    bf16 = MixedPrecision("bfloat16")
    bf16.connect("cpu")
    with caplog.at_level(logging.WARNING):
        fp16.load_state_dict(bf16.state_dict())
        bf16.load_state_dict(fp16.state_dict())
    assert [record.args for record in caplog.records] == [("16-mixed",), ("bf16-mixed",)]
    assert fp16.state_dict()["scale"] == 8.0
    caplog.clear()
    bf16.load_state_dict(bf16.state_dict())
    assert not caplog.records


def test_a_precision_can_be_sent_to_another_process() -> None:
    """Spawned processes get it pickled, before it is connected or after."""
    fresh = pickle.loads(pickle.dumps(MixedPrecision("float16")))
    fresh.connect("cpu")
    again = pickle.loads(pickle.dumps(fresh))
    with again.forward_context():
        assert torch.ones(1, 1).mm(torch.ones(1, 1)).dtype is torch.float16
    assert again.state_dict()["scale"] == 65536.0
