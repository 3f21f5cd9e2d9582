"""What `overhead.py` lets each front end do, and how it takes the time of it.

Reading a batch is the one part of a training step that no front end replaces, so the clocks are there. Before every few
batches the front end is held, and the loop written by hand takes the same batches: whatever else goes on in the machine
goes on for both, and what one step differs by can be told to a microsecond on a busy machine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["CLOCKS", "Batch", "Task", "sgd"]

CLOCKS = ("wall", "cpu")
STRETCH = 20
"""Steps between two turns."""
FEATURES = 32
BATCH_SIZE = 16
Batch = tuple[Tensor, Tensor]


class Task(Dataset[Batch]):
    """One training run, beside the same run by hand; as a data set, its batches, already collated.

    Args:
        epochs: How many; at least 2, since an epoch ends for the clocks where the next begins.
        steps: Batches an epoch.
        autocast: Whether the loop by hand runs its forward pass in bfloat16.
    """

    def __init__(self, epochs: int, steps: int, autocast: bool) -> None:
        self.epochs, self.steps = epochs, steps
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(steps, BATCH_SIZE, FEATURES, generator=generator)
        self._batches = list(zip(inputs, inputs.sum(2, keepdim=True).tanh(), strict=True))
        self.loop = HandWrittenLoop(self.network(), self._batches, autocast)
        self._turns: list[tuple[tuple[int, int], tuple[int, int]]] = []
        """When the loop began and ended each of its stretches, by each clock, in nanoseconds."""

    def network(self) -> nn.Module:
        """The same network each time."""
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, 1))

    def loader(self) -> DataLoader[Any]:
        """The batches, in the same order each time."""
        return DataLoader(self, batch_size=None)

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, position: int) -> Batch:
        if position % STRETCH == 0:
            self._take_turns(position)
        return self._batches[position]

    def _take_turns(self, position: int) -> None:
        began = (time.perf_counter_ns(), time.process_time_ns())
        if position == 0:
            self.loop.start_epoch()
        self.loop.take(STRETCH)
        self._turns.append((began, (time.perf_counter_ns(), time.process_time_ns())))

    def times(self) -> tuple[Tensor, Tensor]:
        """Microseconds a step of the front end and of the loop, each of shape ``(epochs - 1, clocks)``.

        An epoch reaches to the first batch of the next, and so has in it all that is done between the two.
        """
        measured, stretches = self.epochs - 1, -(-self.steps // STRETCH)
        turns = torch.tensor(self._turns, dtype=torch.float64) / 1000 / self.steps
        if len(turns) != self.epochs * stretches:
            raise RuntimeError(f"the batches were read {len(turns) / stretches} times in {self.epochs} epochs")
        began, ended = turns.unbind(1)
        front_end, loop = began[1:] - ended[:-1], ended - began

        def by_epoch(times: Tensor) -> Tensor:
            return times[: measured * stretches].reshape(measured, stretches, len(CLOCKS)).sum(1)

        return by_epoch(front_end), by_epoch(loop)


class HandWrittenLoop:
    """The loop that torch's own tutorial teaches, taken a few steps at a time.

    Args:
        model: What is trained.
        batches: One epoch of them.
        autocast: Whether the forward pass runs in bfloat16, as torch's autocast has it; the loss is in float32.
    """

    def __init__(self, model: nn.Module, batches: list[Batch], autocast: bool) -> None:
        self.model, self.criterion, self.optimizer = model, nn.MSELoss(), sgd(model)
        self.loader: DataLoader[Any] = DataLoader(cast(Any, batches), batch_size=None)
        self.take = self._take_in_autocast if autocast else self._take
        self._epoch: Iterator[Any]

    def start_epoch(self) -> None:
        """Begin again with the first batch."""
        self._epoch = iter(self.loader)

    def _take(self, steps: int) -> None:
        model, criterion, optimizer = self.model, self.criterion, self.optimizer
        for inputs, targets in itertools.islice(self._epoch, steps):
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()

    def _take_in_autocast(self, steps: int) -> None:
        model, criterion, optimizer = self.model, self.criterion, self.optimizer
        for inputs, targets in itertools.islice(self._epoch, steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(inputs)
            loss = criterion(outputs.float(), targets)
            loss.backward()
            optimizer.step()


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all."""
    return torch.optim.SGD(network.parameters(), lr=0.01)
