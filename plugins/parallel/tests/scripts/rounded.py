"""bf16-mixed on meshes of two processes, and what rounds alike: one process with batches in two parts; torch alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from problem import Transformer, batch_of, loss_of, make, say, train
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_hal_parallel import ModelParallelStrategy

from torch_hal import Runtime

STEPS = 10


def by_hand(parts: int, model: nn.Module, optimizer: Any) -> list[float]:
    """Losses of steps whose batches are computed in ``parts``, one after another."""
    losses = []
    for step in range(STEPS):
        pairs: Iterable[tuple[Tensor, Tensor]] = zip(*(one.chunk(parts) for one in batch_of(step)), strict=True)
        total = 0.0
        for text, targets in pairs:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model(text), targets) / parts
            torch.autograd.backward(loss)
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


said: dict[str, Any] = {"one": by_hand(1, *make()), "in parts": by_hand(2, *make())}
for name in ("data", "pipeline", "tensor"):
    strategy = ModelParallelStrategy(**{name: 2})  # type: ignore[arg-type]
    with Runtime(accelerator="cpu", devices=2, strategy=strategy, precision="bf16-mixed") as runtime:
        said[name] = train(runtime, *runtime.prepare(*make()), steps=STEPS)["losses"]
with Runtime(accelerator="cpu", devices=2, strategy="ddp") as runtime:
    runtime.launch()
    model, _ = make()
    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    plan = {layer: styles[style]() for layer, style in Transformer.tensor_parallel_plan.items()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    said["torch's tensor"] = by_hand(1, model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    say(runtime, said)
