"""What the examples with images share: scikit-learn's handwritten digits and a small network.

The data set holds 1,797 real images of 8 x 8 pixels; every fifth is held out.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def digits(items: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Training images (so many, or all) and held-out images, each with labels; pixels from 0 to 1."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    train = TensorDataset(images[~held_out][:items], labels[~held_out][:items])
    return train, TensorDataset(images[held_out], labels[held_out])


def network() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
