"""Fine-tuning: a network learns digits 0 to 4; then its convolutions are frozen, and a new head learns 5 to 9.

Run it as ``python examples/fine_tuning.py --devices 2``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from command_line import arguments, trainer_arguments
from digits import digits, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer, seed_everything


class Classifier(Module):
    """Features and a head of five classes.

    Args:
        features: The layers before the head.
        frozen: Whether they keep their weights.
    """

    def __init__(self, features: nn.Module, frozen: bool = False) -> None:
        super().__init__()
        self.features = features.requires_grad_(not frozen)
        self.frozen = frozen
        self.head = nn.Linear(32 * 4 * 4, 5)

    def forward(self, images: Tensor) -> Any:
        return self.head(self.features(images))

    def on_train_epoch_start(self) -> None:
        """No dropout in frozen layers."""
        self.features.train(not self.frozen)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=3e-3)


def part(data: TensorDataset, low: int) -> TensorDataset:
    """Five of the digits, from ``low``, with labels from 0."""
    images, labels = data.tensors
    chosen = (labels >= low) & (labels < low + 5)
    return TensorDataset(images[chosen], labels[chosen] - low)


def train(model: Classifier, low: int, args: argparse.Namespace) -> Trainer:
    """Train on five of the digits, in a folder of its own; a part that has no checkpoint yet begins anew."""
    folder = Path(args.default_root_dir or ".", f"digits_from_{low}")
    trainer = Trainer(**{**trainer_arguments(args), "default_root_dir": folder})
    images, held_out = (part(data, low) for data in digits(args.items))
    loaders = DataLoader(images, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=256)
    trainer.fit(model, *loaders, ckpt_path=args.ckpt_path if list(folder.rglob("*.ckpt")) else None)
    return trainer


def main() -> None:
    """Train twice, then say how many of the digits of each part are read right."""
    args = arguments(__doc__)
    torch.set_num_threads(1)  # more only wait for each other on images this small
    seed_everything(0)
    layers = network()
    assert isinstance(layers, nn.Sequential)
    features = layers[:7]  # up to the flattened pixels and their dropout
    first = train(Classifier(features), 0, args)
    before = [parameter.detach().clone() for parameter in features.parameters()]
    second = train(Classifier(features, frozen=True), 5, args)
    same = all(torch.equal(*pair) for pair in zip(before, features.parameters(), strict=True))
    if second.is_global_zero:
        accuracies = [float(trainer.callback_metrics["accuracy"]) for trainer in (first, second)]
        print(f"accuracy {accuracies[0]:.4f}, after fine-tuning {accuracies[1]:.4f}, frozen weights unchanged: {same}")


if __name__ == "__main__":
    main()
