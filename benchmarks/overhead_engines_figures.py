"""The figures of `overhead_engines.py` from its runs: the overhead of a front end, with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from overhead_hands import Engine
from overhead_task import CLOCKS
from torch import Tensor

__all__ = ["CONFIDENCE", "CONTROL", "FEWEST", "Figures", "Row", "control_of", "figures_of", "run_of", "shift", "spread"]

CONFIDENCE = 0.95
FEWEST = 4
"""Runs, of which two samples can be told apart with that confidence: of three there is no such interval."""
CONTROL = "by hand"
"""In a front end's place: the engine by hand."""


@dataclass(frozen=True)
class Row:
    """What is measured in separate processes.

    Attributes:
        engine: Which.
        front_end: Its name, or :data:`CONTROL`.
        processes: How many.
    """

    engine: Engine
    front_end: str
    processes: int

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.engine.name}, {self.front_end}, {self.processes} process(es)"

    @property
    def has_bar(self) -> bool:
        """Whether it is the Runtime: the Trainer has its own modules for the engine to go through."""
        return self.front_end == "Runtime"


@dataclass(frozen=True)
class Figures:
    """What all runs gave for a row by one clock, in microseconds a step at the median speed.

    Attributes:
        step: The engine by hand in the quickest run, in the median one, and in the slowest.
        overhead: What the front end takes beyond the control; of the control, median beyond the engine by hand.
        interval: Where that is, with the confidence of :data:`CONFIDENCE`; for the control, its quartiles.
        runs: How many there were.
    """

    step: tuple[float, float, float]
    overhead: float
    interval: tuple[float, float]
    runs: int


def control_of(row: Row) -> Row:
    """The row that it is compared with."""
    return replace(row, front_end=CONTROL)


def run_of(epochs: Tensor) -> Tensor:
    """A run's figures from its epochs', of shape ``(epochs, 2, clocks)``: what is beyond the hand, its median."""
    by_hand = epochs[:, 1].quantile(0.5, dim=0)
    return torch.stack([by_hand + (epochs[:, 0] - epochs[:, 1]).quantile(0.5, dim=0), by_hand])


def figures_of(runs: dict[Row, list[Tensor]]) -> dict[Row, dict[str, Figures]]:
    """Of each row's runs, each of shape ``(2, clocks)``: the figures by each clock."""
    times = {row: torch.stack(taken) for row, taken in runs.items()}
    shares = {row: (taken[:, 0] - taken[:, 1]) / taken[:, 1] for row, taken in times.items()}
    figures: dict[Row, dict[str, Figures]] = {}
    for row in runs:
        alike = [taken[:, 1] for one, taken in times.items() if control_of(one) == control_of(row)]
        steps = torch.cat(alike).quantile(torch.tensor([0, 0.5, 1], dtype=torch.float64), dim=0)
        figures[row] = {}
        for index, clock in enumerate(CLOCKS):
            quickest, median, slowest = steps[:, index].tolist()
            own = shares[row][:, index] * median
            if row.front_end == CONTROL:
                low, overhead, high = own.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=own.dtype)).tolist()
            else:
                low, overhead, high = shift(own, shares[control_of(row)][:, index] * median)
            figures[row][clock] = Figures((quickest, median, slowest), overhead, (low, high), len(own))
    return figures


def shift(values: Tensor, control: Tensor) -> tuple[float, float, float]:
    """By how much ``values`` lie above ``control``, vectors of two samples: lower bound, estimate, upper bound."""
    differences = (values[:, None] - control[None]).flatten().sort().values
    rank = rank_of_bound(len(values), len(control))
    return differences[rank - 1].item(), differences.quantile(0.5).item(), differences[-rank].item()


def rank_of_bound(count: int, others: int) -> int:
    """Which of the differences between two samples, from below and from above, bounds their shift.

    By the normal approximation of Mann and Whitney's statistic; 0 where the samples are too small.
    """
    deviation = math.sqrt(count * others * (count + others + 1) / 12)
    return max(0, int(count * others / 2 - NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation))


def spread(found: Figures) -> str:
    """The overhead with its interval."""
    low, high = found.interval
    return f"{found.overhead:+.1f} ({low:+.0f} to {high:+.0f})"
