"""An autoencoder of handwritten digits: 64 pixels in 8 numbers.

Run it as ``python examples/autoencoder.py --devices 2``.
"""

from __future__ import annotations

from typing import Any

import torch
from command_line import arguments, trainer_arguments
from digits import digits
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Trainer, seed_everything


class Autoencoder(Module):
    """Encoder and decoder, two layers each."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8)))

    def forward(self, images: Tensor) -> Any:
        return self.decoder(self.encoder(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self(batch[0]), batch[0])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[0]), prog_bar=True)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        codes: Tensor = self.encoder(batch[0])
        return codes

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    """Train, then say how much of the held-out images' variance is in the codes."""
    args = arguments(__doc__)
    torch.set_num_threads(1)  # more only wait for each other on images this small
    seed_everything(0)
    train, held_out = digits(args.items)
    model = Autoencoder()
    trainer = Trainer(**trainer_arguments(args))
    loader = DataLoader(held_out, batch_size=120)
    trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True), loader, ckpt_path=args.ckpt_path)
    loss = float(trainer.callback_metrics["val_loss"])
    codes = torch.cat(trainer.predict(model, loader))
    images = held_out.tensors[0]
    explained = 1 - loss / float((images - images.mean(0)).square().mean())
    if trainer.is_global_zero:
        print(f"explained variance {explained:.4f}, codes {tuple(codes.shape)}")


if __name__ == "__main__":
    main()
