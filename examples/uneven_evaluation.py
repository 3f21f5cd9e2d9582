"""Distributed evaluation of data that the processes cannot divide: every item counts once, in order.

Run it as ``python examples/uneven_evaluation.py --devices 3``.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Runtime as Accelerator
from core import seed_everything


def make_model() -> nn.Module:
    """A classifier with random weights."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))


def make_data(items: int = 103) -> TensorDataset:
    """Features and labels of 103 items, a prime number."""
    source = torch.Generator().manual_seed(1)
    features = torch.randn(items, 8, generator=source)
    return TensorDataset(features, features[:, :5].argmax(1))


def main() -> None:
    """Train for an epoch, then evaluate on all processes, and print what one process would."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--batch-size", type=int, default=8, help="on each device")
    args = parser.parse_args()

    accelerator = Accelerator(devices=args.devices)
    seed_everything(0)
    model = accelerator.prepare(make_model())
    loader = accelerator.prepare_data_loader(DataLoader(make_data(), args.batch_size), evaluation=True)

    model.eval()
    gathered: list[tuple[torch.Tensor, ...]] = []
    for features, label in loader:
        with torch.no_grad():
            logits = model(features)
        loss = nn.functional.cross_entropy(logits, label, reduction="none")
        gathered.append(accelerator.gather_for_metrics((logits.argmax(1), label, loss)))

    predicted, expected, losses = (torch.cat(parts) for parts in zip(*gathered, strict=True))
    accelerator.print(f"step 0 loss {losses.mean().item()!r}")
    accelerator.print(f"accuracy {(predicted == expected).float().mean().item():.4f} of {len(expected)}")
    accelerator.print("predictions", *predicted.tolist())
    accelerator.end_training()


if __name__ == "__main__":
    main()
