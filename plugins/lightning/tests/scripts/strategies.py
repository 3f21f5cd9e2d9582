"""Further strategies and checkpoint formats under Lightning's Trainer and Fabric, on two cards."""

from __future__ import annotations

import sys
from typing import Any

from problem import EPOCHS, OUT, Classifier, by_hand, distance, loader, network, part, quiet, say, sgd, weights
from torch import nn
from torch_hal_lightning import Fabric, Trainer

if __name__ == "__main__":
    strategy, formats = sys.argv[1], sys.argv[2]
    said: dict[str, Any] = {}
    made: dict[str, Any] = {"accelerator": "acme", "devices": 2, "strategy": strategy, "checkpoint_io": formats}
    trainer = Trainer(**made, **quiet(max_epochs=1))
    module = Classifier()
    trainer.fit(module, part(trainer.global_rank), loader())
    trainer.save_checkpoint(OUT / "first")
    trainer = Trainer(**made, **quiet())
    module = Classifier()
    trainer.fit(module, part(trainer.global_rank), loader(), ckpt_path=str(OUT / "first"))
    said["trainer"] = distance(weights(module.net), by_hand(2))

    fabric = Fabric(**made)
    fabric.launch()
    net = network()
    model, optimizer = fabric.setup(net, sgd(net))
    for _ in range(EPOCHS):
        for inputs, targets in fabric.setup_dataloaders(loader()):
            optimizer.zero_grad()
            fabric.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
    said["fabric"] = distance(weights(net), by_hand(2))
    fabric.save(OUT / "fabric", {"model": model, "optimizer": optimizer})
    trained = weights(net)
    optimizer.step()
    fabric.load(OUT / "fabric", {"model": model, "optimizer": optimizer})
    said["reloaded"] = distance(weights(net), trained)
    say(fabric.global_rank, said)
