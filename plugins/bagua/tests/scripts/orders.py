"""One of two processes, whose weights differ, that reads its own back from one checkpoint, in either order."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch_hal_bagua import BaguaStrategy

from torch_hal import Runtime

RANK = int(os.environ["RANK"])


def prepared(algorithm: str) -> tuple[Runtime, dict[str, Any]]:
    runtime = Runtime(accelerator="cpu", devices=2, strategy=BaguaStrategy(algorithm, hierarchical=False))
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    return runtime, {"model": model, "optimizer": optimizer}


def train(runtime: Runtime, parts: dict[str, Any], steps: int) -> None:
    for step in range(steps):
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + RANK))
        runtime.backward(parts["model"](inputs).square().mean())
        parts["optimizer"].step()
        parts["optimizer"].zero_grad()


def main() -> None:
    for algorithm in ("decentralized", "low_precision_decentralized"):
        path = f"{algorithm}.ckpt"
        runtime, parts = prepared(algorithm)
        with runtime:
            train(runtime, parts, 5)
            saved = parts["model"].weight.detach().clone()
            others = runtime.gather(saved[None])
            assert not torch.equal(others[0], others[1])
            runtime.save(parts, path)
            train(runtime, parts, 5)
            final = parts["model"].weight.detach().clone()
        for order in (("model", "optimizer"), ("optimizer", "model")):
            runtime, parts = prepared(algorithm)
            with runtime:
                runtime.load(path, {name: parts[name] for name in order})
                assert torch.equal(parts["model"].weight, saved), (algorithm, order)
                train(runtime, parts, 5)
                assert torch.equal(parts["model"].weight, final), (algorithm, order)


if __name__ == "__main__":
    main()
