"""Training on two processes with each precision; process 0 writes the losses and weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from tests.problem import BATCH, NAMES, loader, network, optimizer_of
from torch.nn.functional import cross_entropy

from torch_hal import Runtime

said = {}
for name in NAMES:
    with Runtime(accelerator="cpu", devices=2, strategy="ddp", precision=name) as runtime:
        net = network().eval()
        model, optimizer, own = runtime.prepare(net, optimizer_of(net), loader(BATCH // 2))
        losses = []
        for inputs, labels in own:
            loss = cross_entropy(model(inputs), labels)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(runtime.reduce(loss.detach(), "mean").item())
        weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
        equal = bool((runtime.gather(weights[None]) == weights).all())
        said[name] = {"losses": losses, "weights": weights.tolist(), "equal": equal}
        is_main = runtime.is_main_process
if is_main:
    Path(os.environ["OUT"], "said.json").write_text(json.dumps(said))
