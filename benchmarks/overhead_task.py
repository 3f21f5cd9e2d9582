"""The task of each front end, and how its time is measured.

Reading a batch is the one part of a training step that no front end replaces, so the clocks are there. Before every few
batches the front end waits, and the loop written by hand takes the same batches, so that other work of the machine
affects both.
"""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

__all__ = [
    "CLOCKS",
    "AccumulatingLoop",
    "Batch",
    "HandWrittenLoop",
    "MixedLoop",
    "Task",
    "leave_out",
    "own_numbers",
    "sgd",
]

CLOCKS = ("wall", "cpu", "thread", "outside")
"""Time that passes, time that processors worked for the process, time that one worked for the thread of the loop, and
what of that was outside of the calls that :func:`leave_out` names.

What a front end adds to the engine, it does on the thread that runs the loop; the backward pass of what is on the
CPU runs there too. Not counted there: waiting, and what an engine's own threads do meanwhile, spinning included.
"""
FEATURES = 32
BATCH_SIZE = 16
Batch = tuple[Tensor, Tensor]


class Task(Dataset[Batch]):
    """One training run, compared with the same run by hand; as a data set, its batches, already collated.

    Args:
        epochs: How many; at least 2, since an epoch ends for the clocks where the next begins.
        steps: Batches an epoch.
        make_loop: Gives the loop by hand for a network and its batches. It is called when the front end asks for its
            first batch: what connects processes is there by then.
        rank: This process's number; process ``r`` of ``n`` takes the batches ``r``, ``r + n`` and so on.
        processes: How many there are.
        stretch: Steps between two turns.
        is_list: Whether front ends get the batches as a list. A data set of a class of one's own may draw random
            numbers, so that a prepared loader of several processes seeds each batch; a list cannot.
        batch_size: Of the loader, whose items are batches already: ``None``, or 1 for front ends that can divide only
            what torch collates.
    """

    def __init__(
        self,
        epochs: int,
        steps: int,
        make_loop: Callable[[nn.Module, DataLoader[Any]], HandWrittenLoop],
        rank: int = 0,
        processes: int = 1,
        stretch: int = 20,
        is_list: bool = False,
        batch_size: int | None = None,
    ) -> None:
        self.epochs, self.steps, self.rank, self.processes = epochs, steps, rank, processes
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(steps * processes, BATCH_SIZE, FEATURES, generator=generator)
        self._batches = list(zip(inputs, inputs.sum(2, keepdim=True).tanh(), strict=True))
        self._is_list, self._batch_size = is_list, batch_size
        self._make_loop, self._stretch, self._turn_every = make_loop, stretch, stretch * processes
        self._loop: HandWrittenLoop | None = None
        self._turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        """When the loop began and ended each of its stretches, by each clock, in nanoseconds."""
        self.expected = torch.empty(0)
        """What the loop by hand has ended with: all numbers of its network, flat."""

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, 1))

    def loader(self, is_divided: bool = False) -> DataLoader[Any]:
        """The batches of all processes, in the same order each time; or those of this process."""
        step = self.processes if is_divided else 1
        positions = range(self.rank if is_divided else 0, len(self), step)
        if self._is_list:
            turns: Any = [_Position(self, position) for position in positions]
            return DataLoader(cast("Any", self._batches), self._batch_size, sampler=turns)
        return DataLoader(self, self._batch_size, sampler=positions)

    def __len__(self) -> int:
        return self.steps * self.processes

    def __getitem__(self, position: int) -> Batch:
        self.at(position)
        return self._batches[position]

    def at(self, position: int) -> None:
        """Let the loop by hand take its turn, if it is due where the front end reads ``position``."""
        if position % self._turn_every == self.rank:
            self._take_turns(position == self.rank)

    def _take_turns(self, is_first: bool) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = self._make_loop(self.network(), self._own_loader())
        began = _now()
        if is_first:
            loop.start_epoch()
        loop.take(self._stretch)
        self._turns.append((began, _now()))
        if len(self._turns) == self.epochs * self._stretches:
            self.expected = own_numbers(loop.network, self.rank)
            # Gone before the front end disconnects the processes, with all that it holds of what connects them.
            loop.close()
            del loop
            self._loop = None
            gc.collect()

    def _own_loader(self) -> DataLoader[Any]:
        batches: Any = self._batches
        if self.processes == 1:
            return DataLoader(batches, self._batch_size)
        share = DistributedSampler[Any](batches, num_replicas=self.processes, rank=self.rank, shuffle=False)
        return DataLoader(batches, self._batch_size, sampler=share)

    @property
    def _stretches(self) -> int:
        return -(-self.steps // self._stretch)

    def times(self) -> tuple[Tensor, Tensor]:
        """Microseconds a step of the front end and of the loop, each of shape ``(epochs - 1, clocks)``.

        An epoch reaches to the first batch of the next, and so has in it all that is done between the two.
        """
        front_end, loop = (self._epochs_of(taken).sum(1) / self.steps for taken in self._by_stretch())
        return front_end, loop

    def median_times(self) -> tuple[Tensor, Tensor]:
        """As :meth:`times`, of each epoch's middle stretch by what the front end takes beyond the loop.

        A stretch is compared with the loop's before it and with the loop's after it: what slows down or recovers while
        the two take turns weighs on neither. What another process of the machine costs in a few stretches is not in it,
        nor what is done between two epochs.
        """
        front_end, loop = self._by_stretch()
        before, after, without = (
            self._epochs_of(taken)[:, : self.steps // self._stretch] / self._stretch
            for taken in (front_end - loop[:-1], front_end - loop[1:], loop)
        )
        by_hand = without.quantile(0.5, dim=1)
        return by_hand + torch.cat([before, after], dim=1).quantile(0.5, dim=1), by_hand

    def _epochs_of(self, taken: Tensor) -> Tensor:
        """What is given by stretch of a run, by stretch of each epoch but the last, which is cut short."""
        measured, stretches = self.epochs - 1, self._stretches
        return taken[: measured * stretches].reshape(measured, stretches, len(CLOCKS))

    def _by_stretch(self) -> tuple[Tensor, Tensor]:
        """Microseconds of the front end's stretches and the loop's, each of shape ``(stretches, clocks)``.

        The front end's, each of which begins where one of the loop's ends, are one fewer.
        """
        turns = torch.tensor(self._turns, dtype=torch.float64) / 1000
        if len(turns) != self.epochs * self._stretches:
            raise RuntimeError(f"the batches were read {len(turns) / self._stretches} times in {self.epochs} epochs")
        began, ended = turns.unbind(1)
        return began[1:] - ended[:-1], ended - began


class _Position:
    """An index of a list, which tells the task where the list is read."""

    def __init__(self, task: Task, position: int) -> None:
        self._task, self._position = task, position

    def __index__(self) -> int:
        self._task.at(self._position)
        return self._position

    def __repr__(self) -> str:
        return repr(self._position)


class _LeftOut:
    """Nanoseconds of the thread that were spent in calls that are left out."""

    spent = 0
    is_inside = False


def leave_out(owner: Any, name: str) -> None:
    """Let the clock ``outside`` stand still during calls of ``owner``'s ``name``, and during what they call."""
    method: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if _LeftOut.is_inside:
            return method(*args, **kwargs)
        _LeftOut.is_inside = True
        began = time.thread_time_ns()
        try:
            return method(*args, **kwargs)
        finally:
            _LeftOut.spent += time.thread_time_ns() - began
            _LeftOut.is_inside = False

    setattr(owner, name, timed)


def _now() -> tuple[int, ...]:
    thread = time.thread_time_ns()
    return time.perf_counter_ns(), time.process_time_ns(), thread, thread - _LeftOut.spent


class HandWrittenLoop:
    """The loop that torch's own tutorial teaches, taken a few steps at a time.

    Args:
        network: What is trained.
        loader: One epoch of batches, each time.
        model: The network as it is called; itself, unless given.
        optimizer: Of the network; :func:`sgd`, unless given.
    """

    def __init__(
        self,
        network: nn.Module,
        loader: DataLoader[Any],
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        self.network, self.loader, self.criterion = network, loader, nn.MSELoss()
        self.model = network if model is None else model
        self.optimizer = sgd(network) if optimizer is None else optimizer
        self._epoch: Iterator[Any]

    def start_epoch(self) -> None:
        self._epoch = iter(self.loader)

    def stretch(self, steps: int) -> Iterator[Any]:
        return itertools.islice(self._epoch, steps)

    def take(self, steps: int) -> None:
        model, criterion, optimizer = self.model, self.criterion, self.optimizer
        for inputs, targets in self.stretch(steps):
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()

    def close(self) -> None:
        """End what runs alongside the loop."""


class MixedLoop(HandWrittenLoop):
    """The forward pass in bfloat16, as torch's autocast has it; the loss in float32."""

    def take(self, steps: int) -> None:
        model, criterion, optimizer = self.model, self.criterion, self.optimizer
        for inputs, targets in self.stretch(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(inputs)
            criterion(outputs.float(), targets).backward()
            optimizer.step()


class AccumulatingLoop(HandWrittenLoop):
    """A step after every second batch."""

    _batches = 0

    def take(self, steps: int) -> None:
        model, criterion, optimizer = self.model, self.criterion, self.optimizer
        for inputs, targets in self.stretch(steps):
            self._batches += 1
            (criterion(model(inputs), targets) / 2).backward()
            if self._batches % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()


def own_numbers(network: nn.Module, rank: int = 0) -> Tensor:
    """All that process ``rank``, this one, holds of the parameters, which an engine may have divided, flat."""
    return torch.cat([_local(parameter, rank).detach().flatten().clone() for parameter in network.parameters()])


def _local(parameter: Any, rank: int) -> Tensor:
    """``DTensor`` and DeepSpeed's divided parameters have the part that is here under their own names."""
    if hasattr(parameter, "ds_tensor"):
        part = parameter.ds_tensor
        parameter = part[: max(0, parameter.ds_numel - rank * part.numel())]  # the last is padded with anything
    local: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local


def sgd(network: nn.Module) -> Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.01)
