"""Accumulation on one process: windows, short windows, left loops, and which calls act."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core import GradientAccumulationPlugin, Runtime
from core.errors import ConfigurationError, WrongTypeError
from core.runtime.backward import _Joining

from .problem import network, runtime

ITEMS = 16
BATCH = 2
STEPS = 3
WINDOWS = [slice(0, 6), slice(6, 12), slice(12, 16)]
"""The items of each window: 8 batches of 2, in windows of 3 batches; the last has 2."""


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ITEMS, 4, generator=generator), torch.randn(ITEMS, 2, generator=generator)


class Stream(IterableDataset[Any]):
    """Of unknown length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(zip(*data(), strict=True)))


def loader(is_stream: bool = False) -> DataLoader[Any]:
    return DataLoader(Stream() if is_stream else TensorDataset(*data()), batch_size=BATCH)


def sgd(module: nn.Module) -> SGD:
    return SGD(module.parameters(), lr=0.1, momentum=0.9)


def one_big_batch(windows: list[slice], epochs: int = 1) -> nn.Module:
    """Plain torch: a step for each window."""
    module = network()
    optimizer = sgd(module)
    inputs, targets = data()
    for window in windows * epochs:
        nn.functional.mse_loss(module(inputs[window]), targets[window]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return module


def assert_close(module: nn.Module, expected: nn.Module, tolerance: float = 1e-6) -> None:
    assert not torch.equal(next(module.parameters()), next(network().parameters()))
    for one, other in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def accumulating(steps: Any = STEPS, is_stream: bool = False, **arguments: Any) -> tuple[Runtime, Any, Any, Any]:
    one = runtime(gradient_accumulation_steps=steps, **arguments)
    module = network()
    return (one, *one.prepare(module, sgd(module), loader(is_stream)))


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def zero_after(one: Runtime, model: Any, optimizer: Any, batch: Any) -> None:
    one.backward(loss_of(model, batch))
    optimizer.step()
    optimizer.zero_grad()


def zero_before(one: Runtime, model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    one.backward(loss_of(model, batch))
    optimizer.step()


def step_if_synchronized(one: Runtime, model: Any, optimizer: Any, batch: Any) -> None:
    one.backward(loss_of(model, batch))
    if one.sync_gradients:
        one.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
    optimizer.zero_grad()


def weighted(one: Runtime, model: Any, optimizer: Any, batch: Any) -> None:
    total = nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum")
    one.backward(total, num_items=batch[1].numel())
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("micro_batch", [zero_after, zero_before, step_if_synchronized, weighted])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_window_is_one_big_batch(micro_batch: Callable[..., None], is_stream: bool) -> None:
    """Also the short last one of a pass, whether its length is known before or not, and in any order of the calls."""
    one, model, optimizer, batches = accumulating(is_stream=is_stream)
    synchronized = []
    for _ in range(2):
        for batch in batches:
            with one.accumulate(model):
                micro_batch(one, model, optimizer, batch)
            synchronized.append(one.sync_gradients)
    assert synchronized == [False, False, True, False, False, True, False, True] * 2
    assert_close(model, one_big_batch(WINDOWS, epochs=2))


@pytest.mark.parametrize("sync_with_dataloader", [True, False])
def test_several_micro_batches_in_a_batch(sync_with_dataloader: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A window ends with the data, so those of the last batch would be steps by themselves: a warning says so."""
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=sync_with_dataloader)
    run = runtime(gradient_accumulation_plugin=plugin)
    module = network()
    module, optimizer, batches = run.prepare(module, sgd(module), loader())
    for inputs, targets in batches:
        for half in (slice(0, 1), slice(1, 2)):
            with run.accumulate(module):
                run.backward(nn.functional.mse_loss(module(inputs[half]), targets[half]))
                optimizer.step()
                optimizer.zero_grad()
    assert caplog.text.count("sync_with_dataloader=False") == sync_with_dataloader
    if not sync_with_dataloader:
        assert_close(module, one_big_batch([slice(first, first + 2) for first in range(0, ITEMS, 2)]))


def test_windows_that_go_on_in_the_next_pass() -> None:
    """With ``sync_with_dataloader=False`` only their number counts."""
    one, model, optimizer, batches = accumulating(
        GradientAccumulationPlugin(num_steps=STEPS, sync_with_dataloader=False)
    )
    synchronized = []
    for _ in range(3):
        for batch in batches:
            with one.accumulate(model):
                zero_after(one, model, optimizer, batch)
            synchronized.append(one.sync_gradients)
    assert synchronized == [False, False, True] * 8


@pytest.mark.parametrize("keeps_iterator", [False, True])
def test_leaving_a_loop_changes_no_later_step(keeps_iterator: bool) -> None:
    """Neither one over other data within the loop, nor the loop itself in the middle of a window."""
    one, model, optimizer, batches = accumulating()
    other = one.prepare(loader())
    kept = []
    for number in range(3):
        for position, batch in enumerate(batches):
            for _ in other:
                break
            with one.accumulate(model):
                zero_after(one, model, optimizer, batch)
            if keeps_iterator:
                kept.append(iter(other))
                next(kept[-1])
            if number == 0 and position == 4:
                break
    assert_close(model, one_big_batch([WINDOWS[0], *WINDOWS, *WINDOWS]))


def test_a_loop_without_accumulate_after_one_that_was_left() -> None:
    """Every step acts."""
    one, model, optimizer, batches = accumulating()
    for batch in batches:
        with one.accumulate(model):
            zero_after(one, model, optimizer, batch)
        break
    assert one.sync_gradients
    optimizer.zero_grad()
    before = model[0].weight.detach().clone()
    zero_after(one, model, optimizer, next(iter(batches)))
    assert not torch.equal(model[0].weight, before)


def test_the_state_is_that_of_the_loop() -> None:
    """Accelerate's names."""
    one, model, optimizer, batches = accumulating()
    state = one.gradient_state
    assert (state.num_steps, state.sync_with_dataloader, state.adjust_scheduler) == (3, True, True)
    assert (state.in_dataloader, state.sync_gradients, one.gradient_accumulation_steps) == (False, True, 3)
    ends = []
    for batch in batches:
        assert state.active_dataloader is batches
        with one.accumulate(model):
            zero_after(one, model, optimizer, batch)
        ends.append(state.end_of_dataloader)
    assert ends == [False] * 7 + [True]


@pytest.mark.parametrize("make", [lambda optimizer: StepLR(optimizer, 1, 0.5), ReduceLROnPlateau])
def test_a_scheduler_steps_once_a_window(make: Callable[[Any], Any]) -> None:
    """It is an instance of its class, and its state is that of the user's own."""
    one, model, optimizer, batches = accumulating()
    own = make(optimizer)
    scheduler = one.prepare(own)
    assert isinstance(scheduler, LRScheduler)
    assert isinstance(scheduler, type(own))
    arguments = [1.0] if isinstance(own, ReduceLROnPlateau) else []
    for batch in batches:
        with one.accumulate(model):
            zero_after(one, model, optimizer, batch)
            scheduler.step(*arguments)
    assert scheduler.last_epoch == own.last_epoch == 3
    assert scheduler.state_dict() == own.state_dict()
    if not arguments:
        assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3


def test_a_scheduler_that_steps_by_itself() -> None:
    """With ``step_scheduler_with_optimizer=False`` it is the user's own."""
    one, _, optimizer, _ = accumulating(step_scheduler_with_optimizer=False)
    own = StepLR(optimizer, 1)
    assert one.prepare_scheduler(own) is own


def test_a_step_that_the_scaler_skips() -> None:
    """The scheduler does not step either, and both say so."""
    one = runtime(precision="16-mixed")
    module = network()
    optimizer: Any
    model, optimizer = one.prepare(module, sgd(module))
    scheduler = one.prepare(StepLR(optimizer, 1, 0.5))
    skipped = []
    for factor in (1.0, float("inf"), 1.0):
        one.backward(loss_of(model, data()) * factor)
        one.unscale_gradients(optimizer)
        one.unscale_gradients()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        skipped.append((one.optimizer_step_was_skipped, optimizer.step_was_skipped, scheduler.last_epoch))
    assert skipped == [(False, False, 1), (True, True, 1), (False, False, 2)]


@pytest.mark.parametrize(("steps", "ends_with_data", "taken"), [(1, True, 11), (3, True, 5), (3, False, 3)])
def test_a_scheduler_steps_once_an_epoch(steps: int, ends_with_data: bool, taken: int) -> None:
    """Also where the last step of an epoch was skipped, or a window is open. In the loop it follows the optimizer."""
    plugin = GradientAccumulationPlugin(num_steps=steps, sync_with_dataloader=ends_with_data)
    one = runtime(precision="16-mixed", gradient_accumulation_plugin=plugin)
    module = network()
    model, optimizer, batches = one.prepare(module, sgd(module), DataLoader(TensorDataset(*data()), batch_size=4))
    by_epoch, by_step = one.prepare(StepLR(optimizer, 1, 0.5), StepLR(optimizer, 1, 1.0))
    for factor in (1.0, float("inf"), 1.0):
        rate = by_epoch.get_last_lr()[0]
        for batch in batches:
            with one.accumulate(model):
                one.backward(loss_of(model, batch) * (factor if one.gradient_state.end_of_dataloader else 1.0))
                optimizer.step()
                by_step.step()
                optimizer.zero_grad()
        by_epoch.step()
        assert by_epoch.get_last_lr()[0] == rate / 2
    assert by_step.last_epoch == taken


def test_two_optimizers_in_a_window() -> None:
    """Gradients that the second loss leaves in the first model are cleared before its next window."""
    inputs, targets = data()

    def train(first: Any, second: Any, optimizers: Any, part: slice) -> None:
        for optimizer, adds_second in zip(optimizers, (False, True), strict=True):
            optimizer.zero_grad()
            outputs = first(inputs[part]) + (second(inputs[part]) if adds_second else 0)
            one.backward(nn.functional.mse_loss(outputs, targets[part]))
            optimizer.step()

    one = runtime(gradient_accumulation_steps=2)
    own = [network(), network()]
    *models, first, second = one.prepare(*own, *(SGD(module.parameters(), lr=0.1) for module in own))
    for start in range(0, 12, 2):
        with one.accumulate(*models):
            train(models[0], models[1], (first, second), slice(start, start + 2))
    # By hand: the losses of both micro-batches are computed before a step changes the first model.
    others = [network(), network()]
    plain = [SGD(module.parameters(), lr=0.1) for module in others]
    for start in range(0, 12, 4):
        early, late = slice(start, start + 2), slice(start + 2, start + 4)
        plain[0].zero_grad()
        plain[1].zero_grad()

        def add(part: slice, second_too: bool) -> None:
            loss = nn.functional.mse_loss(others[0](inputs[part]), targets[part])
            if second_too:
                loss = nn.functional.mse_loss(others[0](inputs[part]) + others[1](inputs[part]), targets[part])
            (0.5 * loss).backward()  # type: ignore[no-untyped-call]

        add(early, False)
        add(early, True)
        add(late, False)
        plain[0].step()
        add(late, True)
        plain[1].step()
    for module, expected in zip(models, others, strict=True):
        assert_close(module, expected)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_accumulation_in_mixed_precision(precision: str) -> None:
    """With clipping in every micro-batch, which acts in the last."""
    one, model, optimizer, batches = accumulating(precision=precision)
    norms = []
    for batch in batches:
        with one.accumulate(model):
            one.backward(loss_of(model, batch))
            norms.append(one.clip_grad_norm_(model.parameters(), 1e6) is not None)
            optimizer.step()
            optimizer.zero_grad()
    assert norms == [False, False, True, False, False, True, False, True]
    assert_close(model, one_big_batch(WINDOWS), 1e-2)


def test_backward_outside_of_accumulate_is_divided() -> None:
    """As Accelerate does for loops that count by themselves."""
    one, model, *_ = accumulating(4)
    one.backward(loss_of(model, data()))
    expected: Any = network()
    loss_of(expected, data()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(model[0].weight.grad, expected[0].weight.grad / 4)


def test_without_accumulation_all_is_the_users_own() -> None:
    """``accumulate`` is a context that does nothing, and optimizer and scheduler are returned unchanged."""
    one = runtime()
    module = network()
    optimizer = sgd(module)
    scheduler = StepLR(optimizer, 1)
    assert one.prepare(module, optimizer, scheduler) == (module, optimizer, scheduler)
    with one.accumulate(module):
        one.backward(loss_of(module, data()) * 28, num_items=28)
        assert one.sync_gradients
    expected = network()
    loss_of(expected, data()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(module[0].weight.grad, expected[0].weight.grad)


def test_what_is_refused() -> None:
    """By an error that says what to do."""
    one, model, optimizer, _ = accumulating()
    loss = loss_of(model, data())
    with (
        one.accumulate(model),
        pytest.raises(ConfigurationError, match=r"accumulate\(a, b\)"),
        one.accumulate(model),
    ):
        pass
    with one.accumulate(model):
        one.backward(loss, num_items=5, retain_graph=True)
        with pytest.raises(ConfigurationError, match="twice in one micro-batch"):
            one.backward(loss, num_items=5)
        with pytest.raises(ConfigurationError, match="in all or in none"):
            one.backward(loss)
    with pytest.raises(ConfigurationError, match="closure"):
        optimizer.step(lambda: loss)
    with pytest.raises(WrongTypeError, match=r"num_items='5'"):
        one.backward(loss, num_items="5")  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, -1, 1.5, "2", True, None])
def test_numbers_of_micro_batches(steps: Any) -> None:
    """An integer from 1."""
    with pytest.raises((ConfigurationError, WrongTypeError), match=r"gradient_accumulation_steps=.*an integer ≥ 1"):
        runtime(gradient_accumulation_steps=steps)


@pytest.mark.parametrize("micro_batch", [zero_after, zero_before, weighted])
@pytest.mark.parametrize("stop", range(1, 9))
def test_a_run_that_is_resumed_within_a_window(micro_batch: Callable[..., None], stop: int, tmp_path: Path) -> None:
    """It ends with the parameters of the run that was not interrupted, bit for bit, wherever it was saved."""

    def train(resumes: bool) -> Any:
        one, model, optimizer, batches = accumulating()
        if resumes:
            with torch.no_grad():
                model[0].weight.zero_()
            one.load_state(tmp_path / "state")
        for _ in range(2):  # of an epoch that has no batches left, a resumed pass yields none
            for batch in batches:
                with one.accumulate(model):
                    micro_batch(one, model, optimizer, batch)
                if not resumes and batches.epoch == 1 and batches.batches_taken == stop:
                    one.save_state(tmp_path / "state")
        return model

    for one, other in zip(train(False).parameters(), train(True).parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("stop", range(1, 9))
def test_a_run_that_is_resumed_within_a_loop_that_accumulates_by_itself(
    stop: int, steps: int, precision: str, tmp_path: Path
) -> None:
    """Without ``accumulate``: gradients that no optimizer has stepped with are in the checkpoint, others are not."""

    def train(resumes: bool) -> Any:
        one, model, optimizer, batches = accumulating(steps, precision=precision)
        if resumes:
            with torch.no_grad():
                model[0].weight.zero_()
            one.load_state(tmp_path / "state")
        for batch in batches:
            number = batches.batches_taken
            if number % 4 == 1 and number > 1:
                optimizer.zero_grad()
            with one.no_sync(model):
                one.backward(loss_of(model, batch))
            if number % 4 == 0:
                optimizer.step()
            if not resumes and number == stop:
                one.save_state(tmp_path / "state")
        return model

    expected = train(False)
    skips = precision == "16-mixed" and (steps, stop) == (1, 4)  # the first loss scale is too large: no step
    assert (tmp_path / "state" / "gradients-00000.pt").exists() is (stop % 4 > 0 or skips)
    for one, other in zip(expected.parameters(), train(True).parameters(), strict=True):
        assert torch.equal(one, other)


def test_which_gradients_are_kept(tmp_path: Path) -> None:
    """Those for an optimizer that has not stepped with them; none that were cleared."""
    one = runtime()
    first, second = network(), network()
    first, second, *optimizers = one.prepare(first, second, sgd(first), sgd(second))
    one.backward(second(first(data()[0])[:, [0, 1, 0, 1]]).sum())
    optimizers[1].step()
    one.save_state(tmp_path / "one")
    optimizers[0].step()
    one.save_state(tmp_path / "both")
    one.backward(first(data()[0]).sum())
    for optimizer in optimizers:
        optimizer.zero_grad()
    one.save_state(tmp_path / "cleared")
    assert [path.parent.name for path in tmp_path.glob("*/gradients*")] == ["one"]


def test_the_number_of_micro_batches_is_set_before_prepare() -> None:
    """Later only to another number above 1: the optimizers were prepared for accumulation, or without it."""
    one = runtime()
    one.gradient_accumulation_steps = 4
    module = network()
    _, optimizer = one.prepare(module, sgd(module))
    one.gradient_accumulation_steps = 2
    assert one.gradient_state.num_steps == 2
    with pytest.raises(ConfigurationError, match=r"gradient_accumulation_steps=1: optimizers were prepared for 2"):
        one.gradient_accumulation_steps = 1
    assert optimizer.param_groups


@pytest.mark.parametrize("by", ["hand", "no_sync", "sync_gradients", "state"])
def test_a_loop_that_accumulates_by_itself(by: str) -> None:
    """It may step after two losses, or say itself when gradients are synchronized, without ``accumulate``."""
    one, model, optimizer, batches = accumulating(2)
    for number, batch in enumerate(batches):
        is_last = number % 2 == 1
        if by == "sync_gradients":
            one.sync_gradients = is_last
        elif by == "state":
            one.gradient_state.sync_gradients = is_last
        with one.no_sync(model) if by == "no_sync" and not is_last else nullcontext():
            one.backward(loss_of(model, batch))
        if is_last or by in ("sync_gradients", "state"):
            optimizer.step()
            optimizer.zero_grad()
    assert_close(model, one_big_batch([slice(start, start + 4) for start in range(0, ITEMS, 4)]))


def test_joining_with_loaders_that_keep_their_padding(caplog: pytest.LogCaptureFixture) -> None:
    """Those of map-style data change within the context; of others a warning says so, once."""
    loaders = [SimpleNamespace(is_map_style=is_map, even_batches=True) for is_map in (True, False)]
    window: Any = SimpleNamespace(is_joined=False)
    for value, expected in ((None, [True, True]), (True, [True, True]), (False, [False, True]), (False, [False, True])):
        with _Joining(nullcontext, loaders, value, window):
            assert [loader.even_batches for loader in loaders] == expected
        assert [loader.even_batches for loader in loaders] == [True, True]
    assert caplog.text.count("even_batches=False changes loaders of map-style data only") == 1
