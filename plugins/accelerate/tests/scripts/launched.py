"""Accelerate's class without arguments: the command line of a launcher says what runs."""

from __future__ import annotations

from problem import EPOCHS, by_hand, distance, loader, network, say, sgd, weights
from torch import nn
from torch_hal_accelerate import Accelerator, deactivate

if __name__ == "__main__":
    accelerator = Accelerator()
    net = network()
    model, optimizer, batches = accelerator.prepare(net, sgd(net), loader())
    for _ in range(EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
    rank, world = accelerator.process_index, accelerator.num_processes
    found = {"device": str(accelerator.device), "world": world, "mixed_precision": accelerator.mixed_precision}
    found["accumulates"] = accelerator.gradient_accumulation_steps
    accelerator.wait_for_everyone()
    deactivate()
    bf16 = found["mixed_precision"] == "bf16"
    say(rank, {**found, "distance": distance(weights(net), by_hand(world, autocast=bf16))})
