"""The step of your own loop on one process, in every precision."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from core.errors import ConfigurationError
from core.strategies import SingleDeviceStrategy

from .problem import PRECISIONS, batch, mse, network, runtime

STEPS = 5


def sgd(module: nn.Module) -> SGD:
    return SGD(module.parameters(), lr=0.1, momentum=0.9)


def by_hand(name: str, clip: str | None = None) -> tuple[nn.Module, list[float]]:
    """The training that torch's own documents teach for each precision; the rates that its scheduler gave."""
    module = network()
    true = {"64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16}.get(name)
    half = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(name)
    if true is not None:
        module.to(true)
    optimizer = sgd(module)
    scheduler = StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", enabled=name == "16-mixed")
    inputs, targets = batch()
    rates = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with nullcontext() if half is None else torch.autocast("cpu", dtype=half):
            outputs = module(inputs.to(true) if true else inputs)
        outputs = outputs if outputs.dtype is torch.float64 else outputs.float()
        scaler.scale(mse(outputs, targets)).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            scaler.unscale_(optimizer)
            clip_by_hand(module, clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return module, rates


def clip_by_hand(module: nn.Module, clip: str) -> None:
    if clip == "norm":
        nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    else:
        nn.utils.clip_grad_value_(module.parameters(), 0.001)


@pytest.mark.parametrize("clip", [None, "norm", "value"])
@pytest.mark.parametrize("scheduler_first", [True, False])
@pytest.mark.parametrize("name", PRECISIONS)
def test_your_own_loop(name: str, scheduler_first: bool, clip: str | None) -> None:
    """Bit for bit the loop by hand, and no warning, whether the scheduler was made before or after prepare."""
    module = network()
    optimizer: Any = sgd(module)
    scheduler = StepLR(optimizer, 2, 0.5) if scheduler_first else None
    one = runtime(precision=name)
    model, optimizer, loader = one.prepare(module, optimizer, DataLoader(TensorDataset(*batch()), batch_size=16))
    scheduler = scheduler or StepLR(optimizer, 2, 0.5)
    rates = []
    for _ in range(STEPS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            one.backward(mse(model(inputs), targets))
            if clip == "norm":
                one.clip_grad_norm_(model.parameters(), 0.01)
            elif clip == "value":
                one.clip_grad_value_(model.parameters(), 0.001)
            optimizer.step()
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    expected, expected_rates = by_hand(name, clip)
    assert rates == expected_rates
    assert not torch.equal(next(module.parameters()).float(), next(network().parameters()))
    for parameter, truth in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.equal(parameter, truth)


def test_the_norm_is_that_before_clipping_and_unscaled() -> None:
    """Under 16-mixed too, and unscaled once however often one clips: by norm, by value, of parts."""
    norms = {}
    for name in ("32-true", "16-mixed"):
        module = network()
        one = runtime(precision=name)
        model, optimizer = one.prepare(module, sgd(module))
        inputs, targets = batch()
        one.backward(mse(model(inputs), targets))
        one.clip_grad_value_(next(module.parameters()), 1000.0)
        found = one.clip_grad_norm_((parameter for parameter in module.parameters()), 1000.0)
        again = one.clip_grad_norm_(module.parameters(), 1000.0, norm_type=float("inf"))
        assert found is not None
        assert again is not None
        norms[name] = (found.item(), again.item())
        gradients = [parameter.grad.abs().max() for parameter in module.parameters() if parameter.grad is not None]
        assert norms[name][1] == max(gradients)
        optimizer.step()
    assert norms["16-mixed"] == pytest.approx(norms["32-true"], rel=1e-2)


def test_a_limit_below_zero_is_refused() -> None:
    """Under the name of the argument that it was given as."""
    one, parameter = runtime(), nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigurationError, match=r"max_norm=-1\.0: must be a number ≥ 0"):
        one.clip_grad_norm_(parameter, -1.0)
    with pytest.raises(ConfigurationError, match=r"clip_value=-1\.0: must be a number ≥ 0"):
        one.clip_grad_value_(parameter, -1.0)


def test_the_strategy_unscales() -> None:
    """It is asked before gradients are clipped, for each optimizer that has some of them, in the order of preparing."""
    asked: list[Any] = []

    class Recording(SingleDeviceStrategy):
        def unscale_gradients(self, optimizer: Optimizer) -> None:
            asked.append(optimizer)
            super().unscale_gradients(optimizer)

    one = runtime(precision="16-mixed", strategy=Recording())
    modules = [network() for _ in range(6)]
    optimizers = [sgd(module) for module in modules]
    model = one.prepare(*modules, *optimizers)[0]
    inputs, targets = batch()
    one.backward(mse(model(inputs), targets))
    one.clip_grad_norm_([parameter for module in modules[:5] for parameter in module.parameters()], 1.0)
    assert asked == optimizers[:5]


def test_clipping_what_no_optimizer_unscales() -> None:
    """Gradients that are still scaled are not clipped in silence."""
    module = network()
    one = runtime(precision="16-mixed")
    model = one.prepare(module)
    one.prepare(other := network(), sgd(other))
    inputs, targets = batch()
    one.backward(mse(model(inputs), targets))
    with pytest.raises(ConfigurationError, match="cannot be clipped while they are scaled"):
        one.clip_grad_norm_(module.parameters(), 1.0)


@pytest.mark.parametrize("name", ["32-true", "bf16-mixed"])
def test_autocast_is_for_what_is_computed_outside(name: str) -> None:
    """Within, a product is computed as in a prepared module; afterwards, and with 32-true, as ever."""
    one = runtime(precision=name)
    half = torch.bfloat16 if name == "bf16-mixed" else torch.float32
    with one.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is half
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_each_forward_pass_within_autocast_has_the_weights_of_its_time() -> None:
    """Torch keeps the 16-bit weights of the first pass until its context ends."""
    one = runtime(precision="bf16-mixed")
    module = network()
    model, optimizer = one.prepare(module, sgd(module))
    inputs, targets = batch()
    losses = []
    with one.autocast():
        for _ in range(2):
            losses.append(mse(model(inputs), targets))
            one.backward(losses[-1])
            optimizer.step()
            optimizer.zero_grad()
    assert losses[0] != losses[1]


def test_backward_passes_arguments_on() -> None:
    """As of a tensor's own backward."""
    one = runtime()
    weight = torch.ones((), requires_grad=True)
    loss = weight * 3
    one.backward(loss, retain_graph=True)
    one.backward(loss)
    assert weight.grad is not None
    assert weight.grad.item() == 6


@pytest.mark.parametrize("name", PRECISIONS)
def test_no_sync_on_one_process(name: str) -> None:
    """There is no process to wait for: gradients add up as usual."""
    one = runtime(precision=name)
    module = network()
    model, _ = one.prepare(module, sgd(module))
    inputs, targets = batch()
    with one.no_sync(model):
        one.backward(mse(model(inputs), targets))
    assert module[0].weight.grad is not None


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_step_asks_nothing_of_the_file_system(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where module and optimizer are wrapped."""
    module = network()
    one = runtime(precision=name)
    model, optimizer = one.prepare(module, sgd(module))
    inputs, targets = batch()

    def step() -> None:
        one.backward(mse(model(inputs), targets))
        one.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    for function in ("stat", "open", "listdir", "scandir"):
        monkeypatch.setattr(os, function, lambda *args, **kwargs: pytest.fail("the file system was asked"))
    step()
    monkeypatch.undo()


class TestPreparedOptimizer:
    """The optimizer that 16-mixed hands back."""

    def prepared(self) -> tuple[Any, SGD, Any, Any]:
        module = network()
        own = sgd(module)
        one = runtime(precision="16-mixed")
        model, optimizer = one.prepare(module, own)
        return optimizer, own, model, one

    def train(self, optimizer: Any, model: Any, one: Any) -> None:
        inputs, targets = batch()
        optimizer.zero_grad()
        one.backward(mse(model(inputs), targets))
        optimizer.step()

    def test_state_and_groups_are_the_users(self) -> None:
        """What one reads, adds or loads through it is the user's own optimizer's."""
        optimizer, own, model, one = self.prepared()
        self.train(optimizer, model, one)
        assert optimizer.state is own.state
        assert optimizer.defaults is own.defaults
        state = optimizer.state_dict()
        extra = nn.Parameter(torch.ones(1))
        optimizer.add_param_group({"params": [extra], "lr": 0.5})
        assert own.param_groups[-1]["lr"] == 0.5
        assert extra in own.param_groups[-1]["params"]
        other, other_own, *_ = self.prepared()
        other.load_state_dict(state)
        assert torch.equal(other_own.state_dict()["state"][0]["momentum_buffer"], state["state"][0]["momentum_buffer"])
        assert "SGD" in repr(optimizer)

    def test_zero_grad(self) -> None:
        """To none or to zeros, as the user says."""
        optimizer, _, model, one = self.prepared()
        self.train(optimizer, model, one)
        optimizer.zero_grad(set_to_none=False)
        assert (model[0].weight.grad == 0).all()
        optimizer.zero_grad()
        assert model[0].weight.grad is None

    def test_hooks_of_the_step(self) -> None:
        """A hook that the user registers on it is called at each step."""
        optimizer, own, model, one = self.prepared()
        called: list[Any] = []
        optimizer.register_step_post_hook(lambda *args: called.append(args[0]))
        self.train(optimizer, model, one)
        assert called == [own]

    def test_schedulers_of_every_kind_see_its_steps(self) -> None:
        """One that also sets momentum, made before or after; the warning that there was no step would be an error."""
        for after in (False, True):
            module = network()
            own = sgd(module)
            scheduler = None if after else OneCycleLR(own, 0.1, total_steps=10)
            one = runtime(precision="16-mixed")
            model, optimizer = one.prepare(module, own)
            scheduler = scheduler or OneCycleLR(optimizer, 0.1, total_steps=10)
            for _ in range(3):
                self.train(optimizer, model, one)
                scheduler.step()
            assert own.param_groups[0]["lr"] == scheduler.get_last_lr()[0]
            assert own.param_groups[0]["momentum"] != 0.9

    def test_a_step_that_was_left_out(self) -> None:
        """Where the gradients are not finite, parameters and state stay, and the next step counts again."""
        optimizer, own, model, one = self.prepared()
        before = model[0].weight.detach().clone()
        inputs, targets = batch()
        one.backward(mse(model(inputs), targets) * float("inf"))
        optimizer.step()
        assert torch.equal(model[0].weight, before)
        assert own.state == {}
        self.train(optimizer, model, one)
        assert not torch.equal(model[0].weight, before)

    def test_copies(self) -> None:
        """A deep copy steps its own parameters."""
        optimizer, own, *_ = self.prepared()
        duplicate = copy.deepcopy(optimizer)
        assert duplicate.param_groups[0]["lr"] == 0.1
        theirs, mine = duplicate.param_groups[0]["params"][0], own.param_groups[0]["params"][0]
        assert theirs is not mine
        before = mine.detach().clone()
        duplicate.step.func.__self__.backward(theirs.sum())  # the strategy was copied too
        duplicate.step()
        assert not torch.equal(theirs, before)
        assert torch.equal(mine, before)
        arrived = pickle.loads(pickle.dumps(own))
        assert arrived.param_groups[0]["lr"] == 0.1


def test_an_optimizer_with_a_closure() -> None:
    """Goes through where the precision leaves the step to the optimizer."""
    for name in ("32-true", "bf16-mixed"):
        module = network()
        one = runtime(precision=name)
        model, optimizer = one.prepare(module, torch.optim.LBFGS(module.parameters(), max_iter=3))
        inputs, targets = batch()

        def closure(
            model: Any = model,
            optimizer: Any = optimizer,
            one: Any = one,
            data: tuple[Tensor, Tensor] = (inputs, targets),
        ) -> Tensor:
            optimizer.zero_grad()
            loss = mse(model(data[0]), data[1])
            one.backward(loss)
            return loss

        first = mse(model(inputs), targets).item()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own LBFGS converts a loss with gradient
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        assert mse(model(inputs), targets).item() < first
