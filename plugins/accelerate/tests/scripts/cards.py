"""Accelerate's class on the named cards, in each precision one after another."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from problem import EPOCHS, OUT, by_hand, distance, loader, network, say, sgd, weights
from torch import nn
from torch_hal_accelerate import Accelerator, deactivate

if __name__ == "__main__":
    devices = [int(index) for index in sys.argv[1].split(",")]
    said: dict[str, Any] = {}
    rank = 0
    for precision in sys.argv[2:]:
        accelerator = Accelerator(accelerator="acme", devices=devices, mixed_precision=precision)
        rank = accelerator.process_index
        net = network()
        model, optimizer, batches = accelerator.prepare(net, sgd(net), loader())
        for _ in range(EPOCHS):
            for inputs, targets in batches:
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                optimizer.step()
        trained = weights(net)
        accelerator.save_state(OUT / precision)
        accelerator.wait_for_everyone()
        drawn = torch.rand(3, device=accelerator.device)
        optimizer.step()
        accelerator.load_state(OUT / precision)
        said[precision] = {
            "distance": distance(trained, by_hand(len(devices), autocast=precision != "no")),
            "reloaded": distance(weights(net), trained),
            "draws the same": bool((torch.rand(3, device=accelerator.device) == drawn).all()),
            "device": str(accelerator.device),
            "parameters": str(next(net.parameters()).device),
            "gathered": accelerator.gather(torch.tensor([rank], device=accelerator.device)).tolist(),
            "backend": str(dist.get_backend_config()) if dist.is_initialized() else None,
            "scale": accelerator.scaler.get_scale() if accelerator.scaler is not None else None,
        }
        accelerator.wait_for_everyone()
        deactivate()
    say(rank, said)
