"""Train on two cards, and compare with a plain loop on the CPU. Arguments: strategy, front end."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import stand_ins
import torch.distributed as dist
from torch import nn

from torch_hal import Runtime, Trainer

sys.path.insert(0, str(Path(__file__).parents[4] / "tests" / "helpers"))
from device_problem import EPOCHS, OPTIONS, Classifier, loader, losses_on_the_cpu, net, optimizer_of


def compare(losses: list[float]) -> None:
    """With a plain loop that averages the gradients of the processes."""
    rank = dist.get_rank()
    assert dist.get_backend() == "hccl"
    assert os.environ["HLS_MODULE_ID"] == str(rank)
    assert "hpu.current_device" in stand_ins.calls
    expected = losses_on_the_cpu(rank, dist.get_world_size())
    assert len(expected) == 8
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) <= 1e-6, (losses, expected)
    print(f"rank {rank} equal", flush=True)


class Compared(Classifier):
    """Compares its losses in the process that has them."""

    def on_fit_end(self) -> None:
        """Everything was on the process's own card, which torch calls the first."""
        assert self.seen == {"hpu:0"}, self.seen
        compare(self.losses)


def own_loop(runtime: Runtime) -> None:
    """The same by hand."""
    losses: list[float] = []
    module = net()
    module, optimizer, batches = runtime.prepare(module, optimizer_of(module), loader())
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            loss = nn.functional.cross_entropy(module(inputs), labels)
            optimizer.zero_grad()
            runtime.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    assert runtime.plan.devices == ("hpu:0", "hpu:1")
    assert str(runtime.device) == "hpu:0"
    compare(losses)


def main(strategy: str, front_end: str) -> None:
    """On two cards."""
    arguments: dict[str, Any] = {"accelerator": "hpu", "devices": 2, "strategy": strategy}
    if front_end == "trainer":
        Trainer(**arguments, **OPTIONS).fit(Compared(), loader())
        return
    runtime = Runtime(**arguments)
    runtime.launch()
    own_loop(runtime)
    runtime.teardown()


if __name__ == "__main__":
    main(*sys.argv[1:])
