"""On one card: a fit that resumes, Fabric with a scaled loss, and Lightning's objects in core's Trainer."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from problem import EPOCHS, OUT, Classifier, distance, is_tied, loader, network, quiet, say, sgd, weights
from torch import nn
from torch_hal_lightning import Fabric, Trainer

import torch_hal

OPTIONS: dict[str, Any] = {"accelerator": "acme", "devices": [1]}


def fit(epochs: int, ckpt_path: str | None = None) -> Classifier:
    """Shuffled batches and dropout: both draw random numbers, on the host and on the card."""
    torch.manual_seed(5)
    module = Classifier(dropout=0.5)
    trainer = Trainer(**OPTIONS, **quiet(max_epochs=epochs, enable_checkpointing=False))
    trainer.fit(module, loader(shuffle=True), ckpt_path=ckpt_path)
    trainer.save_checkpoint(OUT / f"after-{epochs}.ckpt")
    return module


class Seen(Callback):  # type: ignore[misc]
    """Lightning's own base class, in core's Trainer."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps.append(trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}


class Module(torch_hal.Module):
    """For core's Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return sgd(self.net)


if __name__ == "__main__":
    said: dict[str, Any] = {}
    fit(1)
    torch.rand(7, device="acme:1")  # a resumed run begins where the other stopped, whatever was drawn since
    resumed = fit(2, ckpt_path=str(OUT / "after-1.ckpt"))
    whole = fit(2)
    said["resumed"] = {
        "distance": distance(weights(resumed), weights(whole)),
        "device": resumed.seen["device"],
        "tied": is_tied(whole.net),
        "same": whole.kept(),
    }

    fabric = Fabric(**OPTIONS, precision="16-mixed")
    net = network()
    before = weights(net)
    model, optimizer = fabric.setup(net, sgd(net))
    for inputs, targets in fabric.setup_dataloaders(loader()):
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
    said["fabric"] = {
        "moved": distance(before, weights(net)),
        "device": str(next(net.parameters()).device),
        "tied": is_tied(net),
    }

    seen, logger = Seen(), CSVLogger(OUT, name="lightning")
    trainer = torch_hal.Trainer(
        callbacks=[seen], **OPTIONS, **quiet(logger=logger, max_epochs=EPOCHS, log_every_n_steps=1)
    )
    trainer.fit(Module(), loader())
    said["core"] = {"steps": seen.steps, "logged": (OUT / "lightning" / "version_0" / "metrics.csv").read_text()}
    say(0, said)
