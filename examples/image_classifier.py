"""Handwritten digits with a DataModule: fit, test and predict.

Run it as ``python examples/image_classifier.py --devices 2 --strategy ddp``.
"""

from __future__ import annotations

from typing import Any

import torch
from command_line import arguments, trainer_arguments
from digits import digits, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, random_split

from core import DataModule, Module, Trainer, seed_everything


class DigitsData(DataModule):
    """Images in three parts: to train on, to validate, and to test.

    Args:
        batch_size: The images of a batch, in each process.
        items: How many images to train and validate on; ``None`` for all.
    """

    def __init__(self, batch_size: int = 32, items: int | None = None) -> None:
        super().__init__()
        self.batch_size, self.items = batch_size, items

    def setup(self, stage: str) -> None:
        images, self.test = digits(self.items)
        parts = torch.Generator().manual_seed(0)  # the same parts in every process
        self.train, self.val = random_split(images, [0.9, 0.1], parts)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, batch_size=256)

    def test_dataloader(self) -> Any:
        return DataLoader(self.test, batch_size=64)

    predict_dataloader = test_dataloader


class Classifier(Module):
    """A classifier of ten digits.

    Args:
        lr: The learning rate.
    """

    def __init__(self, lr: float = 3e-3) -> None:
        super().__init__()
        self.lr = lr
        self.network = network()

    def forward(self, images: Tensor) -> Any:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_accuracy", self.accuracy(batch), prog_bar=True)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("test_accuracy", self.accuracy(batch))

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        predicted: Tensor = self(batch[0]).argmax(1)
        return predicted

    def accuracy(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The part of the images that are read right."""
        images, labels = batch
        right: Tensor = self(images).argmax(1) == labels
        return right.float().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    """Train, then test, then predict the labels of the same images."""
    args = arguments(__doc__)
    torch.set_num_threads(1)  # more only wait for each other on images this small
    seed_everything(0)
    model, data = Classifier(), DigitsData(items=args.items)
    trainer = Trainer(**trainer_arguments(args))
    trainer.fit(model, datamodule=data, ckpt_path=args.ckpt_path)
    trainer.test(model, datamodule=data)
    accuracy = float(trainer.callback_metrics["test_accuracy"])
    predicted = torch.cat(trainer.predict(model, datamodule=data))
    right = int((predicted == digits()[1].tensors[1]).sum())
    if trainer.is_global_zero:
        print(f"test accuracy {accuracy:.4f}, {right} of {len(predicted)} read right")


if __name__ == "__main__":
    main()
