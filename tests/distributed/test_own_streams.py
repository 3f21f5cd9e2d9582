"""Streams that each process reads by itself (``use_distributed_sampler=False``), of different lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .conftest import run_script

PROCESSES, SHORTEST, EPOCHS = 3, 3, 2


def by_hand(batches: int, accumulate: int = 1) -> dict[str, Any]:
    """The state after training in one process on the items of all, ``batches`` of each in an epoch."""
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(EPOCHS):
        for index in range(batches):
            items = torch.tensor([[float(rank), float(index)] for rank in range(PROCESSES)])
            ((model(items) - 1).square().mean() / accumulate).backward()
            if (index + 1) % accumulate == 0 or index + 1 == batches:
                optimizer.step()
                optimizer.zero_grad()
    return {f"model.{name}": value for name, value in model.state_dict().items()}


@pytest.mark.slow
def test_an_epoch_ends_with_the_shortest_stream(tmp_path: Path) -> None:
    """All processes take as many steps as the shortest stream has batches; resumed at any step, they end alike."""
    run_script(tmp_path, "own_streams.py", torchrun=PROCESSES)
    for rank in range(PROCESSES):
        said = torch.load(tmp_path / str(rank))
        for name, batches, accumulate in (
            ("whole", SHORTEST, 1),
            ("beyond", SHORTEST, 1),
            ("limited", 2, 1),
            ("accumulated", SHORTEST, 2),
        ):
            found = said[name]
            assert found["seen"] == [*range(batches)] * EPOCHS, f"{name} in rank {rank}"
            assert found["steps"] == EPOCHS * -(-batches // accumulate), f"{name} in rank {rank}"
            torch.testing.assert_close(found["state"], by_hand(batches, accumulate))
        for step in range(1, EPOCHS * SHORTEST):
            resumed = said[f"from {step}"]
            assert resumed["seen"] == ([*range(SHORTEST)] * EPOCHS)[step:], f"from {step} in rank {rank}"
            for key in ("state", "steps", "loss"):
                torch.testing.assert_close(resumed[key], said["whole"][key], rtol=0, atol=0)
