"""Lightning's Trainer and Fabric one after another, on two cards."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from problem import (
    BATCH,
    EPOCHS,
    OUT,
    Classifier,
    by_hand,
    distance,
    is_tied,
    loader,
    network,
    part,
    quiet,
    say,
    sgd,
    weights,
)
from torch import nn
from torch_hal_lightning import Fabric, Trainer

if __name__ == "__main__":
    said: dict[str, Any] = {}
    for precision in ("32-true", "bf16-mixed"):
        trainer = Trainer(accelerator="acme", devices=2, precision=precision, **quiet())
        module = Classifier()
        trainer.fit(module, part(trainer.global_rank), loader())
        said[precision] = {
            "distance": distance(weights(module.net), by_hand(2, autocast=precision == "bf16-mixed")),
            "seen": module.seen,
            "tied": is_tied(module.net),
            "same": module.kept(),
            "mean rank": trainer.callback_metrics["rank"].item(),
            "backend": str(dist.get_backend_config()),
            "headline": trainer.plan.headline,
        }
        trainer.validate(module, loader(), verbose=False)

    fabric = Fabric(accelerator="acme", devices=2)
    fabric.launch()
    net = network()
    model, optimizer = fabric.setup(net, sgd(net))
    for _ in range(EPOCHS):
        for number, (inputs, targets) in enumerate(fabric.setup_dataloaders(loader()), start=1):
            with fabric.no_backward_sync(model, enabled=number % 2 == 1):
                fabric.backward(nn.functional.cross_entropy(model(inputs), targets) / 2)
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    trained = weights(net)
    fabric.save(OUT / "fabric.ckpt", {"model": model, "optimizer": optimizer})
    fabric.barrier()
    optimizer.step()
    fabric.load(OUT / "fabric.ckpt", {"model": model, "optimizer": optimizer})
    said["fabric"] = {
        "distance": distance(trained, by_hand(2, every=2)),
        "reloaded": distance(weights(net), trained),
        "sum of integers": fabric.all_reduce(torch.tensor(fabric.global_rank + 1), reduce_op="sum").item(),
        "mean of integers": fabric.all_reduce(torch.tensor(fabric.global_rank)).item(),
        "batches": BATCH,
    }
    say(fabric.global_rank, said)
