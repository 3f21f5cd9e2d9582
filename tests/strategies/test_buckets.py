"""The groups in which DDP averages gradients: the same at every step where sums depend on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket  # as torch.distributed.GradBucket, but with types
from torch.nn.parallel import DistributedDataParallel

from core.strategies.ddp import wrap
from core.utilities.torch_private import FixedBuckets, accumulates, hooks_after_accumulation


class Unordered(nn.Module):
    """Its parameters are registered in another order than that in which they are used; one is not used."""

    counted: torch.Tensor

    def __init__(self, has_unused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.first, self.middle = nn.Linear(5, 3), nn.Linear(4, 7), nn.Linear(7, 5)
        if has_unused:
            self.unused = nn.Linear(2, 2)
        self.register_buffer("counted", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.counted += 1
        result: torch.Tensor = self.last(self.middle(self.first(inputs)))
        return result


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone: DDP's layout does not depend on the number of processes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def layouts(ddp: DistributedDataParallel, steps: int = 3) -> list[list[list[int]]]:
    """For each step the numbers of elements of the gradients in each bucket; the gradients are those of plain torch."""
    seen: list[list[list[int]]] = []

    def hook(state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen[-1].append([gradient.numel() for gradient in bucket.gradients()])
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    ddp.register_comm_hook(None, hook)
    inputs = torch.randn(6, 4)
    for _ in range(steps):
        seen.append([])
        ddp.zero_grad()
        ddp(inputs).square().mean().backward()
        used = [parameter for name, parameter in ddp.module.named_parameters() if "unused" not in name]
        averaged = [parameter.grad for parameter in used]
        for gradient, expected in zip(
            averaged, torch.autograd.grad(ddp.module(inputs).square().mean(), used), strict=True
        ):
            assert gradient is not None
            assert torch.equal(gradient, expected)
    return seen


@pytest.mark.parametrize("cap", [25, 0.00005])
@pytest.mark.parametrize("static", [False, True])
def test_layout_never_changes(static: bool, cap: float) -> None:
    """Neither after the first step nor with a small ``bucket_cap_mb``; wrapped plainly, it does."""
    options: dict[str, Any] = {"static_graph": static, "bucket_cap_mb": cap}
    fixed = layouts(wrap(Unordered(static), fixed=True, **options))
    assert fixed[0] == fixed[1] == fixed[2]
    expected = [parameter.numel() for parameter in reversed(list(Unordered(static).parameters()))]
    assert [number for bucket in fixed[0] for number in bucket] == expected
    plain = layouts(wrap(Unordered(static), fixed=False, **options))
    assert plain[0] != plain[-1]
    assert sorted(map(len, plain[-1])) == sorted(map(len, fixed[0])) or cap < 1


def test_wrapping_leaves_everything_as_it_was() -> None:
    """No gradient, buffer, hook or random number takes part."""
    module, calls = Unordered(False), []
    module.register_forward_hook(lambda *_: calls.append("forward"))
    kept = torch.ones_like(module.last.weight)
    module.last.weight.grad = kept
    for parameter in module.parameters():
        assert not hooks_after_accumulation(parameter)
        parameter.register_post_accumulate_grad_hook(lambda _: calls.append("gradient"))  # type: ignore[no-untyped-call]
    before, generator = {name: value.clone() for name, value in module.state_dict().items()}, torch.get_rng_state()
    assert isinstance(wrap(module, fixed=True), FixedBuckets)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not calls
    assert all(map(hooks_after_accumulation, module.parameters()))
    assert module.last.weight.grad is kept
    assert torch.equal(kept, torch.ones_like(kept))
    assert all(parameter.grad is None for parameter in module.parameters() if parameter is not module.last.weight)


def test_only_where_torch_changes_it() -> None:
    """With ``find_unused_parameters`` torch never changes the layout, so the module is wrapped plainly."""
    assert type(wrap(Unordered(True), fixed=True, find_unused_parameters=True)) is DistributedDataParallel
    assert type(wrap(Unordered(True), fixed=False)) is DistributedDataParallel


def test_whether_a_pass_adds_to_gradients() -> None:
    """A backward pass does, torch.autograd.grad does not, by whatever it differentiates."""
    parameter, inputs, seen = nn.Parameter(torch.ones(1)), torch.ones(1, requires_grad=True), []
    others = [nn.Parameter(torch.ones(1)), parameter]
    for run in (
        torch.Tensor.backward,
        lambda loss: torch.autograd.grad(loss, inputs),
        lambda loss: torch.autograd.grad(loss, parameter),
    ):
        loss = parameter * inputs
        loss.register_hook(lambda _: seen.append(accumulates(others)))  # type: ignore[no-untyped-call]
        run(loss)
    assert seen == [True, False, False]
