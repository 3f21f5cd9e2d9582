"""Handwritten digits with your own loop on the Runtime.

Run it as ``python examples/digits_runtime.py --devices 2 --strategy ddp --precision bf16-mixed``.
"""

from __future__ import annotations

import argparse

import torch
from digits import digits, network
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from core import Runtime, seed_everything


def train(runtime: Runtime, epochs: int) -> None:
    """Train, then say how many held-out digits were read right."""
    torch.set_num_threads(1)  # more only wait for one another on images this small
    seed_everything(0)
    train_set, held_out = digits()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = CosineAnnealingLR(optimizer, epochs)
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    model, optimizer, loader = runtime.prepare(model, optimizer, loader)

    for epoch in range(epochs):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        runtime.print(f"epoch {epoch + 1}/{epochs}: loss {float(loss.detach()):.4f}")

    # Each process reads its share of the held-out digits; the counts are summed.
    share = range(runtime.process_index, len(held_out), runtime.num_processes)
    images, labels = (tensor[list(share)].to(runtime.device) for tensor in held_out.tensors)
    model.eval()
    with torch.inference_mode():
        right = (model(images).argmax(1) == labels).sum()
    accuracy = runtime.reduce(right, "sum").item() / len(held_out)
    plan = runtime.plan
    where = f"{plan.strategy.name} on {', '.join(plan.devices)}, {plan.precision.name}"
    runtime.print(f"held-out accuracy {accuracy:.4f} ({where})")


def main() -> None:
    """Parse the arguments, and run the loop in every process of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("accelerator", "strategy", "devices", "precision"):
        parser.add_argument(f"--{name}", default="auto")
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()
    runtime = Runtime(
        accelerator=args.accelerator, strategy=args.strategy, devices=args.devices, precision=args.precision
    )
    runtime.launch(train, args.epochs)


if __name__ == "__main__":
    main()
