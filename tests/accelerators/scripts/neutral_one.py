"""A device that only has a torch backend, with no plugin, by its own name and by ``auto``: one process."""

import simx
import torch
from recipe_problem import OPTIONS, Classifier, loader, trained_by_hand
from torch import nn

from core import Runtime, Trainer

plain, mixed = trained_by_hand(), trained_by_hand(autocast=torch.bfloat16)
for accelerator, devices, device in (("simx", 1, "simx:0"), ("simx", [1], "simx:1"), ("auto", 1, "simx:0")):
    trainer = Trainer(accelerator=accelerator, devices=devices, **OPTIONS)
    assert trainer.runtime.plan.accelerator.name == simx.DEVICE_TYPE
    module = Classifier()
    trainer.fit(module, loader())
    module.assert_trained(plain, device, "float32")

module = Classifier()
Trainer(accelerator="simx", devices=1, precision="bf16-mixed", **OPTIONS).fit(module, loader())
module.assert_trained(mixed, "simx:0", "bfloat16")

module = Classifier()
Trainer(accelerator="simx", devices=1, precision="16-mixed", **OPTIONS).fit(module, loader())
assert module.seen == {"simx:0", "float16"}, module.seen
assert all(torch.isfinite(parameter).all() for parameter in module.parameters())

module = Classifier()
Trainer(accelerator="cpu", devices=1, **OPTIONS).fit(module, loader())
module.assert_trained(plain, "cpu", "float32")

runtime = Runtime(accelerator="auto", devices="1,")
assert str(runtime.device) == "simx:1"
module = Classifier()
net, optimizer, batches = runtime.prepare(module.net, module.configure_optimizers(), loader())
for _ in range(OPTIONS["max_epochs"]):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(net(inputs), labels)
        optimizer.zero_grad()
        runtime.backward(loss)
        optimizer.step()
module.assert_trained(plain)
assert all(str(parameter.device) == "simx:1" for parameter in module.net.parameters())
runtime.teardown()
print("trained with no plugin")
