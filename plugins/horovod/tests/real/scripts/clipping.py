"""``python clipping.py FILE``: gradients clipped under 16-mixed, compared with a plain loop that knows all batches.

Horovod is to reduce after three passes, but most steps come after fewer; before the third step the loss of rank 1 alone
is infinite.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import flat, loss_of, net
from torch import Tensor
from torch_hal_horovod import HorovodStrategy

from torch_hal import Runtime

PASSES = (3, 1, 2, 1, 3)
OVERFLOWS = 2
CLIP = 0.05


def batch_of(step: int, number: int, rank: int) -> tuple[Tensor, Tensor]:
    """What one process takes in one pass."""
    generator = torch.Generator().manual_seed(100 * step + 10 * number + rank)
    inputs = torch.randn(4, 6, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def factor(step: int, rank: int) -> float:
    """What the loss is multiplied by."""
    return 1e30 if (step, rank) == (OVERFLOWS, 1) else 1.0


def two_nets() -> tuple[Any, Any, list[Any]]:
    """Nets that are trained together, and an optimizer for each."""
    one, two = net(0), net(1)
    return one, two, [torch.optim.SGD(each.parameters(), lr=0.5, momentum=0.9) for each in (one, two)]


def with_horovod(runtime: Runtime) -> dict[str, Any]:
    """The loop of one process."""
    own, other, optimizers = two_nets()
    one, two, *made = runtime.prepare(own, other, *optimizers)
    parameters = [*own.parameters(), *other.parameters()]
    norms, rank = [], runtime.process_index
    for step, passes in enumerate(PASSES):
        for number in range(passes):
            inputs, targets = batch_of(step, number, rank)
            loss = loss_of(one(inputs), targets) + loss_of(two(inputs), targets)
            runtime.backward(loss * factor(step, rank) / passes)
        norm = runtime.clip_grad_norm_(parameters, CLIP)
        assert norm is not None
        norms.append(norm)
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
    scale: Any = runtime.strategy.precision.state_dict()["scale"]
    return {"norms": torch.stack(norms), "one": flat(own), "two": flat(other), "scale": scale}


def plainly() -> dict[str, Any]:
    """The same by torch alone: gradients of all processes averaged, unscaled, clipped."""
    one, two, optimizers = two_nets()
    parameters = [*one.parameters(), *two.parameters()]
    scaler = torch.amp.GradScaler("cpu")
    norms = []
    for step, passes in enumerate(PASSES):
        for rank in range(2):
            for number in range(passes):
                inputs, targets = batch_of(step, number, rank)
                with torch.autocast("cpu", dtype=torch.float16):
                    outputs = one(inputs), two(inputs)
                loss: Any = sum(loss_of(output.float(), targets) for output in outputs)
                scaler.scale(loss * factor(step, rank) / passes / 2).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, CLIP))
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    return {"norms": torch.stack(norms), "one": flat(one), "two": flat(two), "scale": scaler.get_scale()}


arguments: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "precision": "16-mixed"}
with Runtime(strategy=HorovodStrategy(backward_passes_per_step=3), **arguments) as runtime:
    said = runtime.strategy.all_gather_object(with_horovod(runtime))
    if runtime.is_main_process:
        torch.save({"horovod": said, "plain": plainly()}, sys.argv[1])
    runtime.barrier()
