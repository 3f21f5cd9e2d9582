"""Handwritten digits with the Trainer.

Run it as ``python examples/digits_trainer.py --devices 2 --strategy ddp --precision bf16-mixed``.
"""

from __future__ import annotations

from typing import Any

import torch
from command_line import arguments, trainer_arguments
from digits import digits, network
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from core import Module, Trainer, seed_everything


class Digits(Module):
    """A classifier of ten digits."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs
        self.network = network()
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, images: Tensor) -> Any:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss: Tensor = self.criterion(self(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": optimizer, "lr_scheduler": CosineAnnealingLR(optimizer, self.epochs)}


def main() -> None:
    """Train, then say how many held-out digits were read right."""
    args = arguments(__doc__)
    torch.set_num_threads(1)  # more only wait for one another on images this small
    seed_everything(0)
    train, held_out = digits(args.items)
    module = Digits(args.epochs)
    trainer = Trainer(**trainer_arguments(args))
    loaders = DataLoader(train, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=256)
    trainer.fit(module, *loaders, ckpt_path=args.ckpt_path)
    if trainer.is_global_zero:
        plan = trainer.plan
        where = f"{plan.strategy.name} on {', '.join(plan.devices)}, {plan.precision.name}"
        print(f"held-out accuracy {float(trainer.callback_metrics['accuracy']):.4f} ({where})")


if __name__ == "__main__":
    main()
