"""What prepare hands back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

import core
from core import release_memory
from core.errors import ConfigurationError
from core.runtime.prepare.wrappers import PreparedModule, PreparedOptimizer
from core.strategies import SingleDeviceStrategy, unwrap_optimizer

from .problem import PRECISIONS, network, runtime


def objects() -> list[Any]:
    module = network()
    optimizer = SGD(module.parameters(), lr=0.1)
    return [DataLoader(list(range(4))), StepLR(optimizer, 1), optimizer, module, nn.MSELoss()]  # type: ignore[arg-type]


def test_on_one_device_in_32_bit_everything_but_the_loader_is_the_users_own() -> None:
    """The very same objects, in the order given, so that the loop costs what it costs by hand.

    The loader, which counts its epochs and batches, hands out what the user's own does.
    """
    given = objects()
    prepared = runtime().prepare(*given)
    assert type(prepared) is tuple
    assert all(one is other for one, other in zip(prepared[1:], given[1:], strict=True))
    assert isinstance(prepared[0], DataLoader)
    assert [*prepared[0]] == [*given[0]]


def test_a_module_on_meta_is_refused() -> None:
    """By the name of what has no numbers; a strategy that divides modules may give it some."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ConfigurationError, match=r"module: '0.weight' of Sequential is on device 'meta'"):
        runtime().prepare(module)


@pytest.mark.parametrize("position", range(5))
def test_a_single_object_comes_back_by_itself(position: int) -> None:
    """Not as a tuple of one."""
    given = objects()[position]
    prepared = runtime().prepare(given)
    assert isinstance(prepared, DataLoader) if position == 0 else prepared is given


@pytest.mark.parametrize("name", PRECISIONS)
def test_order_and_kind_in_every_precision(name: str) -> None:
    """Whatever is wrapped stands in for what it wraps, in its place, and is known as one of its kind."""
    given = objects()
    for order in (given, given[::-1]):
        prepared = runtime(precision=name).prepare(*order)
        kinds = (DataLoader, StepLR, SGD, nn.Module, nn.Module)
        for obj, old, kind in zip(prepared, order, kinds if order is given else kinds[::-1], strict=True):
            if kind is SGD:
                assert isinstance(obj, torch.optim.Optimizer)
                assert obj.param_groups is old.param_groups
            else:
                assert isinstance(obj, kind)


@pytest.mark.parametrize("name", PRECISIONS)
def test_what_is_prepared_may_be_prepared_again(name: str) -> None:
    """It comes back as it is, wrapped once."""
    once = runtime(precision=name)
    prepared = once.prepare(*objects())
    assert all(one is other for one, other in zip(once.prepare(*prepared), prepared, strict=True))


def test_what_another_runtime_has_prepared_is_prepared_anew() -> None:
    """Or this one before it ended: in its precision, its accumulation, and told of the passes over the data."""
    module = network()
    optimizer = SGD(module.parameters(), lr=0.1)
    first = runtime(precision="bf16-mixed", gradient_accumulation_steps=2)
    scheduler = StepLR(optimizer, 1)
    data: Any = [torch.ones(4)] * 5
    objects: Any = (module, optimizer, scheduler, DataLoader(data, batch_size=2))
    before: Any = first.prepare(*objects)
    for again in (runtime(gradient_accumulation_steps=3), first):
        first.teardown()
        again.launch()
        model, stepper, steps, loader = again.prepare(*before)
        assert (model is module) == (again is not first)
        assert all(one is not other for one, other in zip(before, (model, stepper, steps), strict=False))
        assert (loader is before[3]) == (again is first)
        synced, last = [], []
        for batch in loader:
            with again.accumulate(model):
                output = model(batch)
                again.backward(output.mean())
                stepper.step()
                steps.step()
                stepper.zero_grad()
            synced.append(again.sync_gradients)
            last.append(again.gradient_state.end_of_dataloader)
        assert synced == ([False, True, True] if again is first else [False, False, True])
        assert last == [False, False, True]


def test_only_what_has_something_to_do_is_wrapped() -> None:
    """A module where the precision acts around its forward pass, an optimizer where it acts in its step."""
    wrapped = {}
    for name in PRECISIONS:
        module, optimizer = network(), None
        optimizer = SGD(module.parameters(), lr=0.1)
        model, stepper = runtime(precision=name).prepare(module, optimizer)
        wrapped[name] = (isinstance(model, PreparedModule), isinstance(stepper, PreparedOptimizer))
    assert wrapped == {name: (name != "32-true", name == "16-mixed") for name in PRECISIONS}


class EngineStrategy(SingleDeviceStrategy):
    """Has another backward once there is an optimizer, as a strategy with an engine."""

    ready = False

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        self.ready = True
        return super().setup_optimizers(optimizers)

    def make_backward(self) -> Callable[..., None]:
        def backward(loss: torch.Tensor) -> None:
            (2 * loss).backward()  # type: ignore[no-untyped-call]

        return backward if self.ready else super().make_backward()


def test_what_backward_is_in_the_loop_is_decided_when_objects_are_prepared() -> None:
    """A strategy may decide again once its engine has module and optimizer."""
    one = runtime(strategy=EngineStrategy())
    model: Any = one.prepare(nn.Linear(1, 1))
    gradients = []
    for prepare in (False, True):
        if prepare:
            one.prepare(SGD(model.parameters(), lr=0.1))
        model.zero_grad()
        one.backward(model(torch.ones(1, 1)).sum())
        gradients.append(float(model.weight.grad))
    assert gradients == [1.0, 2.0]


class Halving(core.Runtime):
    """A user's own kind of Runtime."""

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(loss / 2, *args, **kwargs)


def test_a_subclass_may_override_backward() -> None:
    """In every state of a run: before it, in it, after objects were prepared, and when it was started again."""
    parameter = torch.ones(1, requires_grad=True)
    one = Halving(accelerator="cpu", devices=1)

    def again() -> None:
        one.teardown()
        one.launch()

    for change in (lambda: None, lambda: one.prepare(network()), again):
        change()
        one.backward(2 * parameter)
    one.teardown()
    assert parameter.grad is not None
    assert float(parameter.grad) == 3.0


def test_a_replaced_backward_stays() -> None:
    """One that the user sets on the object is called, before and after objects are prepared."""
    one, seen = runtime(), list[torch.Tensor]()
    one.backward = seen.append  # type: ignore[method-assign, assignment]
    for change in (lambda: None, lambda: one.prepare(network())):
        change()
        one.backward(torch.ones(1))
    assert len(seen) == 2


@pytest.mark.parametrize("obj", [None, [1, 2], int, {"a": 1}, torch.ones(1), len])
def test_other_objects_are_returned_unchanged(obj: Any) -> None:
    """As Accelerate does. Texts, numbers and iterators are refused: see tests/mistakes/test_own_loops.py."""
    assert runtime().prepare(network(), obj)[1] is obj


@pytest.mark.parametrize("name", ["32-true", "16-mixed"])
def test_each_kind_has_its_own_method(name: str) -> None:
    """With the results of ``prepare``."""
    one = runtime(precision=name)
    loader, scheduler, optimizer, module, _ = objects()
    model = one.prepare_model(module)
    prepared = one.prepare_optimizer(optimizer)
    stepping = one.prepare_scheduler(scheduler)
    assert (model is module, prepared is optimizer, stepping is scheduler) == (name == "32-true",) * 3
    assert one.prepare(model, prepared, stepping) == (model, prepared, stepping)
    assert isinstance(stepping, StepLR)
    assert [*one.prepare_data_loader(loader)] == [*loader]
    assert one.prepare_model(network(), evaluation_mode=True)(torch.ones(1, 4)).shape == (1, 2)


def test_device_placement_has_a_value_for_each_object() -> None:
    """Otherwise it would be unknown which object it is for."""
    with pytest.raises(ConfigurationError, match=r"device_placement=\[True\]: has 1 values for 2 objects"):
        runtime().prepare(network(), network(), device_placement=[True])


def test_free_memory() -> None:
    """The Runtime forgets what was prepared; the results are for the names that hold it."""
    one = runtime(precision="16-mixed")
    module = network()
    model, optimizer = one.prepare(module, SGD(module.parameters(), lr=0.1))
    reference = weakref.ref(module)
    del module
    model, optimizer = one.free_memory(model, optimizer)
    assert (model, optimizer) == (None, None)
    gc.collect()
    assert reference() is None
    assert one.clear() == []
    assert release_memory(torch.ones(1)) == [None]


def test_schedulers_of_every_kind_are_handed_back() -> None:
    """ReduceLROnPlateau is one too; where no step can be skipped, it is the user's own."""
    optimizer = SGD(network().parameters(), lr=0.1)
    for scheduler in (ReduceLROnPlateau(optimizer), LambdaLR(optimizer, lambda epoch: 1.0)):
        assert runtime(precision="bf16-mixed").prepare(scheduler) is scheduler
        _, prepared = runtime(precision="16-mixed").prepare(optimizer, scheduler)
        assert type(prepared).__name__ == type(scheduler).__name__
        assert prepared.state_dict() == scheduler.state_dict()


def test_optimizers_that_are_gone_are_not_kept() -> None:
    """A Runtime that prepares one model after another does not hold on to them."""
    one = runtime(precision="16-mixed")
    references: list[Any] = []
    for _ in range(3):
        module = network()
        prepared = one.prepare(module, SGD(module.parameters(), lr=0.1))
        references += [weakref.ref(module), weakref.ref(unwrap_optimizer(prepared[1]))]
    del module, prepared
    gc.collect()
    assert [reference() for reference in references] == [None] * 6
