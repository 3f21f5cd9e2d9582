"""The same training under 16-mixed, by hand and with a Runtime."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from core.strategies import OptimizerWrapper

from .problem import batch, mse, network, runtime

__all__ = ["STEPS", "assert_equal", "by_hand", "prepared", "sgd", "with_runtime"]

STEPS = 4


def sgd(module: nn.Module) -> SGD:
    return SGD(module.parameters(), lr=0.1, momentum=0.9)


def prepared(make: Any = sgd) -> tuple[Any, Any, Any]:
    """The prepared optimizer, the user's own, and a function that takes one step."""
    module = network()
    own = make(module)
    one = runtime(precision="16-mixed")
    model, optimizer = one.prepare(module, own)

    def train(factor: float = 1.0) -> None:
        inputs, targets = batch()
        optimizer.zero_grad()
        one.backward(mse(model(inputs), targets) * factor)
        optimizer.step()

    return optimizer, own, train


def by_hand(make: Any, around: Any = None) -> list[torch.Tensor]:
    """torch's own loop with a GradScaler; ``around`` makes what is called after each step."""
    module = network()
    optimizer = make(module)
    after = around(optimizer, module) if around else lambda: None
    scaler = torch.amp.GradScaler("cpu")
    inputs, targets = batch()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = module(inputs)
        scaler.scale(mse(outputs.float(), targets)).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        after()
    return list(module.parameters())


def with_runtime(make: Any, around: Any = None, before: bool = False) -> list[torch.Tensor]:
    """The same loop with a prepared optimizer, which is what ``around`` is given unless ``before``."""
    module = network()
    own = make(module)
    one = runtime(precision="16-mixed")
    after = around(own, module) if around and before else None
    model, optimizer = one.prepare(module, own)
    assert isinstance(optimizer, OptimizerWrapper)
    after = after or (around(optimizer, module) if around else lambda: None)
    inputs, targets = batch()
    for _ in range(STEPS):
        optimizer.zero_grad()
        one.backward(mse(model(inputs), targets))
        optimizer.step()
        after()
    return list(module.parameters())


def assert_equal(some: Any, others: Any) -> None:
    assert not torch.equal(some[0], next(network().parameters()))
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one, other)
