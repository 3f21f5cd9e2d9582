"""Train over four virtual devices, and tell."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
import torch
from tests.problem import OPTIONS, Classifier, furthest, loader, net, plain_losses, sgd
from torch import nn

from torch_hal import Runtime, Trainer

xlac = importlib.import_module("_XLAC")
precision, path = sys.argv[1:]
module = Classifier()
trainer = Trainer(accelerator="xla", strategy="xla_spmd", precision=precision, **OPTIONS)
trainer.fit(module, loader(), loader(32))
autocast = precision == "bf16-mixed"
told = {
    "devices": trainer.runtime.plan.devices,
    "world_size": trainer.runtime.plan.world_size,
    "steps": len(module.losses),
    "furthest": furthest(module.losses, plain_losses(net(), autocast=autocast)),
    "furthest_clipped": 0.0,
}

with Runtime(accelerator="xla", strategy="xla_spmd", precision=precision) as runtime:
    model = net()
    model, optimizer, batches = runtime.prepare(model, sgd(model), loader())
    losses = []
    for _ in range(OPTIONS["max_epochs"]):
        for inputs, labels in batches:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            runtime.backward(loss)
            runtime.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    told["furthest_clipped"] = furthest(losses, plain_losses(net(), autocast=autocast, clip=0.5))
    sharding = xlac._get_xla_sharding_spec
    told["batch"] = sharding(inputs)
    told["parameters"] = sorted({sharding(parameter) for parameter in model.parameters()})
    told["compiled"] = xlac._get_xla_tensors_hlo([nn.functional.cross_entropy(model(inputs), labels)])
    runtime.save({"model": model}, path)
    before = [parameter.cpu().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    runtime.load(path, {"model": model})
    told["loaded"] = all(map(torch.equal, before, [parameter.cpu() for parameter in model.parameters()]))
print(json.dumps(told))
