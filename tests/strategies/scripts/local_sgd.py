"""Compares the strategy of docs/strategy-authors.md, imported as ``page``, with plain torch; by number of processes."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from page import LocalSGDStrategy  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.optim import SGD

from core import Runtime

EVERY, STEPS, SAVED_AFTER = 3, 8, 4
PROCESSES = int(sys.argv[1])


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(module: Any, rank: int, step: int) -> Tensor:
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(100 * rank + step))
    loss: Tensor = (module(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    return loss


def average(replicas: list[nn.Module]) -> None:
    for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = torch.stack([parameter.detach() for parameter in parameters]).mean(0)
        for parameter in parameters:
            parameter.data.copy_(mean)


def expected(resumed: bool) -> list[nn.Module]:
    """All replicas in one process, by hand; loaded from the checkpoint after some steps, or not."""
    replicas = [model() for _ in range(PROCESSES)]
    optimizers = [SGD(replica.parameters(), lr=0.2) for replica in replicas]
    for step in range(STEPS):
        if resumed and step == SAVED_AFTER:
            average(replicas)
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_of(replica, rank, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if (step + 1) % EVERY == 0:
            average(replicas)
    return replicas


def trained(runtime: Runtime, folder: Path, resumed: bool) -> nn.Module:
    own = model()
    if runtime.process_index:
        for parameter in own.parameters():
            parameter.data.zero_()  # only rank 0 starts right
    module, optimizer = runtime.prepare(own, SGD(own.parameters(), lr=0.2))
    state = {"model": module, "optimizer": optimizer}
    if resumed:
        runtime.load(folder, state)
    for step in range(SAVED_AFTER if resumed else 0, STEPS):
        if step == SAVED_AFTER and not resumed:
            runtime.save(state, folder)
        runtime.backward(loss_of(module, runtime.process_index, step))
        optimizer.step()
        optimizer.zero_grad()
    return own


def main() -> None:
    folder = Path("checkpoint")
    for resumed in (False, True):
        runtime = Runtime(accelerator="cpu", devices=PROCESSES, strategy=LocalSGDStrategy(every=EVERY))
        own = trained(runtime, folder, resumed)
        by_hand = expected(resumed)[runtime.process_index]
        for found, wanted in zip(own.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        averaged = copy.deepcopy(expected(resumed))
        average(averaged)
        state = runtime.strategy.module_state(own)
        for name, wanted in averaged[0].state_dict().items():
            torch.testing.assert_close(state[name], wanted, rtol=1e-5, atol=1e-6)
        rank = runtime.process_index
        runtime.teardown()
        sys.stdout.write(f"rank {rank} resumed={resumed} as by hand\n")  # one write: ranks share the stream
        sys.stdout.flush()


main()
