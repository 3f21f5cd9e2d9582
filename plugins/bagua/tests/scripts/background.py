"""One process of a group that averages weights in the background; the argument says what to do."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_hal_bagua import BaguaStrategy

from torch_hal import Runtime

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Point(nn.Module):
    """One number; every process begins with rank 0's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([float(RANK)]))

    def forward(self) -> Tensor:
        return self.weight.sum()


class Slow(torch.optim.Optimizer):
    """Takes 1 + its rank off the weight, and between reading it and writing it waits for the averager to come along."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.comes_along: Any = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        (weight,) = self.param_groups[0]["params"]
        read = weight.clone()
        self.comes_along()
        weight.copy_(read - 1 - RANK)


def _runtime(**options: Any) -> Runtime:
    return Runtime(accelerator="cpu", devices=WORLD_SIZE, strategy=BaguaStrategy("async", **options))


def _until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited for nothing"
        time.sleep(0.0005)


def race() -> None:
    """Each step begins to write what it read only after the averager has come, and so would undo what it wrote.

    With "parts" as second argument the loss is, after the first step, of the module's parts, past its own forward.
    """
    parts = "parts" in sys.argv[2:]
    steps = 12
    with _runtime(sync_interval_ms=1) as runtime:
        model = Point()
        optimizer = Slow(model.parameters())
        prepared, stepper = runtime.prepare(model, optimizer)
        algorithm: Any = runtime.strategy.algorithm  # type: ignore[attr-defined]
        (replica,) = algorithm._replicas
        averager, gate = replica._averager, replica._gate

        def comes_along() -> None:
            before = averager.averagings
            _until(lambda: gate._guests > 0 or averager.averagings > before)

        optimizer.comes_along = comes_along
        for step in range(steps):
            runtime.backward(model.weight.sum() if parts and step else prepared())
            stepper.step()
            stepper.zero_grad()
        runtime.barrier()  # while one is still stepping, all average
        algorithm.abort()
        runtime.barrier()
        total = runtime.reduce(model.weight.detach(), "sum").item()
        # An average leaves the sum as it is, so that nothing but the steps has changed it.
        expected = -steps * WORLD_SIZE * (WORLD_SIZE + 1) / 2
        assert total == expected, f"updates were lost: the sum is {total}, not {expected}"
        assert averager.averagings > 0


def abort() -> None:
    """After abort nothing changes; after resume, and no steps, all reach the mean of what they had."""
    with _runtime(sync_interval_ms=1) as runtime:
        model = Point()
        prepared, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=RANK + 1.0))
        algorithm: Any = runtime.strategy.algorithm  # type: ignore[attr-defined]
        (replica,) = algorithm._replicas
        for _ in range(3):
            runtime.backward(prepared())
            optimizer.step()
            optimizer.zero_grad()
        algorithm.abort()
        runtime.barrier()
        for _ in range(5):
            runtime.backward(prepared())
            optimizer.step()
            optimizer.zero_grad()
        own, averagings = model.weight.item(), replica._averager.averagings
        runtime.barrier()
        time.sleep(0.1)
        assert (model.weight.item(), replica._averager.averagings) == (own, averagings)
        mean = runtime.reduce(model.weight.detach(), "mean").item()
        algorithm.resume()
        _until(lambda: replica._averager.averagings > averagings)
        if RANK == 0:
            algorithm.abort()  # one process is enough
        runtime.barrier()
        time.sleep(0.1)
        assert abs(model.weight.item() - mean) < 1e-5, (own, mean, model.weight.item())


def life() -> None:
    """Twenty runs with other numbers of steps in each process, pauses, evaluations, and ends at any moment."""
    for run in range(20):
        own = random.Random(1000 * run + RANK)
        everybody = random.Random(run)
        with _runtime(sync_interval_ms=everybody.choice([1, 3, 50]), warmup_steps=everybody.choice([0, 2])) as runtime:
            net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
            model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
            algorithm: Any = runtime.strategy.algorithm  # type: ignore[attr-defined]
            for step in range(2 + own.randrange(20)):
                runtime.backward(model(torch.randn(4, 6)).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                if own.random() < 0.2:
                    time.sleep(0.01 * own.random())
                if step > 2 and own.random() < 0.2:
                    algorithm.abort()
                if step > 2 and own.random() < 0.3:
                    algorithm.resume()
                with torch.no_grad():
                    model(torch.randn(4, 6))
            if own.random() < 0.3:
                runtime.strategy.module_state(net)
    print("all runs ended", flush=True)


def error() -> None:
    """An error in one process, within a step, while all average."""
    with _runtime(sync_interval_ms=1) as runtime:
        model = Point()
        prepared, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(10**6):
            loss = prepared()
            if RANK == 1 and step == 20:
                raise ArithmeticError("of this rank's own")
            runtime.backward(loss)
            optimizer.step()
            time.sleep(0.001)


def killed() -> None:
    """A process that dies in the middle of an exchange, under the algorithm in the second argument."""
    strategy = BaguaStrategy(sys.argv[2], hierarchical=False)
    with Runtime(accelerator="cpu", devices=WORLD_SIZE, strategy=strategy) as runtime:
        net = nn.Linear(6, 1)
        model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for step in range(10**6):
            if RANK == 1 and step == 5:
                os._exit(9)
            runtime.backward(model(torch.randn(4, 6)).square().mean())
            optimizer.step()


def open_ended() -> None:
    """A script that just ends, while all average as often as they can."""
    runtime = _runtime(sync_interval_ms=1)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(40)))
    model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for _ in range(3):
        for _ in range(5):
            runtime.backward(model(torch.randn(4, 64)).square().mean())
            optimizer.step()
        runtime.strategy.algorithm.abort()  # type: ignore[attr-defined]
        runtime.strategy.algorithm.resume()  # type: ignore[attr-defined]
        runtime.gather(net[0].weight)
    print("through")


if __name__ == "__main__":
    if sys.argv[1] == "open_ended":
        open_ended()
    else:
        {"race": race, "abort": abort, "life": life, "error": error, "killed": killed}[sys.argv[1]]()
        assert not dist.is_initialized()
