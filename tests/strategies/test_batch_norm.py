"""Batch normalization over several processes, which are threads here, against torch on the joined batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core import Runtime, Trainer
from core.errors import ConfigurationError, WrongTypeError
from core.strategies.batch_norm import SyncedBatchNorm, desynchronize, synchronize

SIZES = (3, 1, 4)
"""Rows of each process."""


class Sums:
    """A sum over three threads, each of which has its number."""

    def __init__(self) -> None:
        self._barrier, self._given = Barrier(3, timeout=30), [torch.empty(0)] * 3

    def of(self, rank: int) -> Callable[[Tensor], Tensor]:
        def add(tensor: Tensor) -> Tensor:
            self._given[rank] = tensor
            self._barrier.wait()
            total = torch.stack(self._given).sum(0)
            self._barrier.wait()
            return total

        return add


def each(run: Callable[[int], Any]) -> list[Any]:
    """What ``run`` returns in each of three threads."""
    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(run, range(3)))


def model(layer: type[nn.Module], **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    shape = nn.Linear(5, 4) if layer is nn.BatchNorm1d else nn.Conv2d(5, 4, 2)
    return nn.Sequential(shape, layer(4, **options), nn.Tanh()).double()


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str
)
@pytest.mark.parametrize(("layer", "shape"), [(nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (5, 3, 4))])
@pytest.mark.parametrize("sizes", [SIZES, (4, 0, 4)], ids=str)
def test_three_equal_one_with_the_joined_batch(layer: Any, shape: Any, sizes: Any, options: dict[str, Any]) -> None:
    """Outputs, gradients of inputs and parameters, and running statistics, over two steps, then in eval mode."""
    expected, sums = model(layer, **options), Sums()
    copies = [copy.deepcopy(expected) for _ in sizes]
    for rank, one in enumerate(copies):
        synchronize(one, sums.of(rank))
    for _ in range(2):
        inputs = torch.randn(8, *shape, dtype=torch.float64, requires_grad=True)
        outputs = expected(inputs)
        outputs.pow(3).sum().backward()
        parts: list[Any] = [part.detach().requires_grad_() for part in torch.split(inputs, sizes)]

        def step(rank: int, parts: Any = parts) -> Tensor:
            result: Tensor = copies[rank](parts[rank])
            result.pow(3).sum().backward()  # type: ignore[no-untyped-call]
            return result.detach()

        torch.testing.assert_close(torch.cat(each(step)), outputs.detach())
        assert inputs.grad is not None
        torch.testing.assert_close(torch.cat([part.grad for part in parts]), inputs.grad)
    for own, *parts in zip(expected.parameters(), *(one.parameters() for one in copies), strict=True):
        torch.testing.assert_close(sum(part.grad for part in parts), own.grad)
    for one in copies:
        for name, buffer in expected.named_buffers():
            torch.testing.assert_close(dict(one.named_buffers())[name], buffer)
        torch.testing.assert_close(one.eval()(inputs), expected.eval()(inputs))


def test_half_precision() -> None:
    """16-bit inputs are normalized in float32, and come out in their dtype, as torch does."""
    own = nn.BatchNorm1d(4)
    layers = synchronize(own, lambda tensor: tensor)
    inputs = torch.randn(8, 4, dtype=torch.bfloat16)
    outputs = own(inputs)
    assert outputs.dtype is torch.bfloat16
    desynchronize(layers)
    torch.testing.assert_close(outputs, own(inputs), atol=0.02, rtol=0.02)


def test_layers_stay_the_same_objects() -> None:
    """A synchronized layer keeps identity, names and hooks; copies are plain; undoing it leaves nothing."""
    module = model(nn.BatchNorm1d)
    layer, names, attributes = module[1], list(module.state_dict()), set(vars(module[1]))
    calls: list[str] = []
    layer.register_forward_hook(lambda *_: calls.append("hook"))
    layers = synchronize(module, lambda tensor: tensor)
    assert isinstance(layer, SyncedBatchNorm)
    assert isinstance(layer, nn.BatchNorm1d)
    assert synchronize(module, lambda tensor: tensor) == layers == [layer]
    module(torch.randn(4, 5).double())
    assert (module[1], list(module.state_dict()), calls) == (layer, names, ["hook"])
    del module[1]._forward_hooks[next(iter(layer._forward_hooks))]
    for duplicate in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(duplicate[1]) is nn.BatchNorm1d
        torch.testing.assert_close(duplicate[1].state_dict(), layer.state_dict(), rtol=0, atol=0)
    desynchronize(layers)
    assert type(layer) is nn.BatchNorm1d
    assert set(vars(layer)) == attributes


class Odd(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return input


@pytest.mark.parametrize(("layer", "why"), [(nn.LazyBatchNorm1d, "without parameters"), (Odd, "forward of its own")])
def test_layers_that_cannot(layer: Any, why: str) -> None:
    """They are refused by name."""
    wrong = layer() if layer is nn.LazyBatchNorm1d else layer(4)
    with pytest.raises(ConfigurationError, match=f"'inner' is a {layer.__name__} .*{why}"):
        synchronize(nn.ModuleDict({"inner": wrong}), lambda tensor: tensor)


def test_one_process() -> None:
    """There is nothing to do, and nothing is done."""
    module = model(nn.BatchNorm1d).float()
    runtime = Runtime(accelerator="cpu", devices=1, sync_batchnorm=True)
    assert type(runtime.prepare(module)[1]) is nn.BatchNorm1d
    assert Trainer(accelerator="cpu", devices=1, sync_batchnorm=True, logger=False).settings.sync_batchnorm
    with pytest.raises(WrongTypeError, match="sync_batchnorm='yes'"):
        Runtime(sync_batchnorm="yes")  # type: ignore[arg-type]
