"""Lightning's Trainer and Fabric on some cards, on data that does not divide: Lightning's own samplers complete it."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import OUT, Classifier, distance, network, quiet, say, sgd, weights
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_hal_lightning import Fabric, Trainer

CARDS = int(sys.argv[1])
EPOCHS, BATCH, ITEMS = 2, 8, 67


def data() -> TensorDataset:
    """The samples."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(ITEMS, 8, generator=generator), torch.randint(0, 3, (ITEMS,), generator=generator))


def batches_of(epoch: int, shuffle: bool) -> list[tuple[Tensor, Tensor]]:
    """Those of all processes together, as torch's own sampler divides the samples."""
    samplers: list[Any] = [DistributedSampler(data(), CARDS, rank, shuffle=shuffle) for rank in range(CARDS)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    loaders = (DataLoader(data(), BATCH, sampler=sampler) for sampler in samplers)
    return [
        (torch.cat(inputs), torch.cat(targets))
        for inputs, targets in (zip(*b, strict=True) for b in zip(*loaders, strict=True))
    ]


def by_hand(precision: str, shuffle: bool) -> tuple[list[Tensor], float]:
    """The weights, and the loss of all samples by them, completed as for training."""
    net = network()
    optimizer = sgd(net)
    low = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")
    for epoch in range(EPOCHS):
        for inputs, targets in batches_of(epoch, shuffle):
            optimizer.zero_grad()
            with low:
                loss = nn.functional.cross_entropy(net(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad(), low:
        inputs, targets = (torch.cat(parts) for parts in zip(*batches_of(0, False), strict=True))
        return weights(net), float(nn.functional.cross_entropy(net(inputs), targets))


class Validated(Classifier):  # type: ignore[misc]
    """With the mean of the validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)


if __name__ == "__main__":
    said: dict[str, Any] = {}
    options: dict[str, Any] = {"accelerator": "acme", "devices": CARDS}
    for precision in ("32-true", "bf16-mixed"):
        for which in ("whole", "resumed"):
            trainer = Trainer(
                **options,
                precision=precision,
                **quiet(use_distributed_sampler=True, num_sanity_val_steps=0, max_epochs=EPOCHS),
            )
            module = Validated()
            path = str(OUT / f"{precision}.ckpt") if which == "resumed" else None
            if path is None:
                first = Trainer(**options, precision=precision, **quiet(use_distributed_sampler=True, max_epochs=1))
                first.fit(module, DataLoader(data(), BATCH))
                first.save_checkpoint(OUT / f"{precision}.ckpt")
                module = Validated()
            trainer.fit(module, DataLoader(data(), BATCH), DataLoader(data(), BATCH), ckpt_path=path)
            expected, loss = by_hand(precision, shuffle=True)
            said[f"{precision} {which}"] = {
                "distance": distance(weights(module.net), expected),
                "validation": abs(trainer.callback_metrics["val"].item() - loss),
                "sum": sum(float(one.double().sum()) for one in weights(module.net)),
                "world": trainer.world_size,
                "device": module.seen["device"],
            }
        fabric = Fabric(**options, precision=precision)
        fabric.launch()
        net = network()
        model, optimizer = fabric.setup(net, sgd(net))
        batches = fabric.setup_dataloaders(DataLoader(data(), BATCH))
        for _ in range(EPOCHS):
            for inputs, targets in batches:
                optimizer.zero_grad()
                fabric.backward(nn.functional.cross_entropy(model(inputs), targets))
                optimizer.step()
        said[f"{precision} fabric"] = {
            "distance": distance(weights(net), by_hand(precision, shuffle=False)[0]),
            "world": fabric.world_size,
        }
    say(fabric.global_rank, said)
