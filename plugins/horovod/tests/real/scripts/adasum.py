"""``python adasum.py FILE``: steps under Adasum, with what each process's own gradient was before each of them."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import data, loss_of, net
from torch_hal_horovod import HorovodStrategy

from torch_hal import Runtime

RATE, MOMENTUM, STEPS, ITEMS = 0.5, 0.9, 3, 8

with Runtime(accelerator="cpu", strategy=HorovodStrategy(op="adasum")) as runtime:
    runtime.launch()
    rank, processes = runtime.process_index, runtime.num_processes
    own = net(rank)  # they begin as rank 0 does
    # One tensor that only rank 0 has a gradient for.
    lonely = torch.nn.Parameter(torch.ones(3))
    own.register_parameter("lonely", lonely)
    made: Any = torch.optim.SGD(own.parameters(), lr=RATE, momentum=MOMENTUM)
    model, made = runtime.prepare(own, made)
    inputs, targets = data().tensors
    history: list[dict[str, Any]] = []

    def parameters() -> dict[str, Any]:
        """Each tensor as it is now."""
        return {name: value.detach().double() for name, value in own.named_parameters()}

    for step in range(STEPS):
        first = (step * processes + rank) * ITEMS
        chosen = slice(first, first + ITEMS)
        extra = own.get_parameter("lonely").sum() * float(rank == 0)
        runtime.backward(loss_of(model(inputs[chosen]), targets[chosen]) + extra)
        gradients = {name: value.grad.double() for name, value in own.named_parameters() if value.grad is not None}
        before = parameters()
        made.step()
        made.zero_grad()
        history.append(
            {
                "gradients": runtime.strategy.all_gather_object(gradients),
                "before": runtime.strategy.all_gather_object(before),
                "after": runtime.strategy.all_gather_object(parameters()),
            }
        )
    if runtime.is_main_process:
        torch.save({"history": history, "rate": RATE, "momentum": MOMENTUM}, sys.argv[1])
    runtime.barrier()
