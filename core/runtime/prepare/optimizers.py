"""An optimizer that the strategy steps."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch.optim import Optimizer

from ...strategies.base import Strategy
from ...strategies.wrapping import OptimizerWrapper
from ..accumulation import OptimizerGate

__all__ = ["AccumulatingOptimizer", "PreparedOptimizer"]


class PreparedOptimizer(OptimizerWrapper):
    """The user's optimizer, stepped by the strategy.

    Args:
        optimizer: The user's optimizer.
        strategy: What carries out the step.
    """

    own_attributes: ClassVar[tuple[str, ...]] = ("_core_strategy",)

    _core_strategy: Strategy

    def __init__(self, optimizer: Optimizer, strategy: Strategy) -> None:
        super().__init__(optimizer, strategy.make_optimizer_step(optimizer))
        object.__setattr__(self, "_core_strategy", strategy)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last call was no step: scaled gradients were not finite, or the strategy collects more."""
        return not self._core_strategy.steps_taken(self._core_optimizer)


class AccumulatingOptimizer(PreparedOptimizer):
    """A prepared optimizer whose ``step`` and ``zero_grad`` act once in each window of micro-batches.

    Args:
        optimizer: The user's optimizer.
        strategy: What carries out the step.
        gate: Says whether a call acts.
    """

    own_attributes: ClassVar[tuple[str, ...]] = (*PreparedOptimizer.own_attributes, "_core_gate")

    _core_gate: OptimizerGate

    def __init__(self, optimizer: Optimizer, strategy: Strategy, gate: OptimizerGate) -> None:
        step = partial(gate.step, strategy.make_optimizer_step(optimizer))
        OptimizerWrapper.__init__(self, optimizer, step)
        object.__setattr__(self, "_core_strategy", strategy)
        object.__setattr__(self, "_core_gate", gate)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients, unless they wait for the step at the end of the window."""
        if self._core_gate.clears():
            self._core_optimizer.zero_grad(*args, **kwargs)
