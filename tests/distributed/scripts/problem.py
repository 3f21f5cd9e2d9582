"""The problem that every script here solves, and where each process leaves its parameters."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5
BATCH = 20


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(400, 12, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1, keepdim=True) + inputs[:, :1].sin()))


def shuffled() -> DataLoader[object]:
    """A process's batches, in an order that depends on nothing else."""
    return DataLoader(dataset(), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=3e-3)


def leave(module: nn.Module, rank: int) -> None:
    """Write the parameters of this process, for the test to compare."""
    torch.save(module.state_dict(), os.path.join(os.environ["OUT"], f"rank{rank}.pt"))
