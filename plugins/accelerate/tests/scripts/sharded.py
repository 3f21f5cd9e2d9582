"""Accelerate's ``fsdp_plugin`` on two cards: trained, saved within, and resumed; and its first version."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import FullyShardedDataParallelPlugin
from problem import EPOCHS, OUT, by_hand, distance, loader, network, say, sgd
from torch import nn
from torch_hal_accelerate import Accelerator, deactivate

from torch_hal.errors import ConfigurationError

said: dict[str, Any] = {}


def train(accelerator: Accelerator, model: nn.Module, optimizer: Any, batches: Any) -> None:
    """One epoch."""
    for inputs, targets in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()


def made(version: int) -> Accelerator:
    """On two cards."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, auto_wrap_policy="no_wrap")
    return Accelerator(accelerator="acme", devices=2, fsdp_plugin=plugin)


accelerator, net = made(2), network()
prepared = accelerator.prepare(net, sgd(net), loader())
for epoch in range(EPOCHS):
    if epoch == EPOCHS - 1:
        accelerator.save_state(str(OUT / "state"))
    train(accelerator, *prepared)
trained = accelerator.get_state_dict(prepared[0])
accelerator.load_state(str(OUT / "state"))
train(accelerator, *prepared)
again = accelerator.get_state_dict(prepared[0])
if accelerator.is_main_process:
    names = [name for name, _ in network().named_parameters()]
    said["distance"] = distance([trained[name].cpu() for name in names], by_hand(2))
    said["resumed"] = all(torch.equal(trained[name], again[name]) for name in names)
said["device"] = str(accelerator.device)
accelerator.wait_for_everyone()
deactivate()

accelerator = made(1)
try:
    accelerator.prepare(network())
except ConfigurationError as error:
    said["refused"] = str(error)
rank = accelerator.process_index
accelerator.wait_for_everyone()
deactivate()
say(rank, said)
