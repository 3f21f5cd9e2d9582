"""A transformer that learns to continue lines of characters.

Run it as ``python examples/transformer.py --devices 2``.
"""

from __future__ import annotations

from typing import Any

import torch
from command_line import arguments, trainer_arguments
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer, seed_everything

CHARACTERS = 13
LENGTH = 8


def lines(items: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Lines that go up by 1, 2 or 3 from any character, in a circle; every seventh is held out."""
    starts = torch.cartesian_prod(torch.arange(CHARACTERS), torch.arange(1, 4))
    text = (starts[:, :1] + starts[:, 1:] * torch.arange(LENGTH)) % CHARACTERS
    held_out = torch.arange(len(text)) % 7 == 3
    return TensorDataset(text[~held_out].repeat(20, 1)[:items]), TensorDataset(text[held_out])


class Writer(Module):
    """A transformer with two layers that predicts the next character."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, CHARACTERS)

    def forward(self, text: Tensor) -> Any:
        count = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(count, device=text.device)
        return self.output(self.layers(self.characters(text) + self.places[:count], mask=mask, is_causal=True))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        (text,) = batch
        predicted = self(text[:, :-1])[:, 1:]  # the third character is the first that can be known
        loss = nn.functional.cross_entropy(predicted.flatten(0, 1).float(), text[:, 2:].flatten())
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        (text,) = batch
        predicted = self(text[:, :-1])[:, 1:].argmax(2)
        self.log("accuracy", (predicted == text[:, 2:]).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = CosineAnnealingLR(optimizer, T_max=300)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    """Train, then say how many characters of the held-out lines are right."""
    args = arguments(__doc__)
    torch.set_num_threads(1)  # more only wait for each other on a model this small
    seed_everything(0)
    train, held_out = lines(args.items)
    trainer = Trainer(**trainer_arguments(args), gradient_clip_val=1.0)
    loaders = DataLoader(train, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=32)
    trainer.fit(Writer(), *loaders, ckpt_path=args.ckpt_path)
    if trainer.is_global_zero:
        print(f"accuracy {float(trainer.callback_metrics['accuracy']):.4f} on held-out lines")


if __name__ == "__main__":
    main()
