"""Parameters without a gradient, and the state that the engine's first step makes: as if torch stepped by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["AbsentGradients"]


class AbsentGradients:
    """Keeps an optimizer's step from what hivemind does with gradients that are ``None``.

    hivemind replaces these by zeros, with which weight decay and momentum move a parameter, also a frozen one. And
    before the run it takes a step with gradients of zero, so that all peers have a state of the same structure.

    Create it before ``hivemind.Optimizer``, and call :meth:`undo_first_step` after it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._weights = [parameter.detach().clone() for parameter in self.parameters]
        self._gradients = [parameter.grad for parameter in self.parameters]
        self._known = {*optimizer.state}
        self._absent: set[Tensor] | None = None
        """Those that had no gradient in any call since the last step; ``None`` before the first call."""
        self._made: dict[Tensor, dict[str, Any]] = {}
        """By parameter, the state that is not the optimizer's own, because it has not been stepped."""
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def undo_first_step(self) -> None:
        """Undo the effects of hivemind's first step, but for the structure of the state."""
        state = self.optimizer.state
        with torch.no_grad():
            for parameter, weight, gradient in zip(self.parameters, self._weights, self._gradients, strict=True):
                parameter.copy_(weight)
                parameter.grad = gradient
        self._weights, self._gradients = [], []
        self._made = {one: state[one] for one in self.parameters if one in state and one not in self._known}
        for made in self._made.values():
            for value in made.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def release(self) -> None:
        """Leave the optimizer to the user."""
        self._hook.remove()
        for parameter in [*self._made]:
            self._forget(parameter)

    @contextmanager
    def counted(self, closure: Callable[[], Any] | None) -> Iterator[Callable[[], Any] | None]:
        """Around a call of the engine: the closure to give it; afterwards absent gradients are absent again."""
        without: list[Tensor] = []

        def note() -> None:
            without[:] = [parameter for parameter in self.parameters if parameter.grad is None]
            self._absent = {*without} if self._absent is None else self._absent & {*without}

        def noting() -> Any:
            result = closure() if closure is not None else None
            note()
            return result

        if closure is None:
            note()
        yield None if closure is None else noting
        for parameter in without:
            parameter.grad = None

    def state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """The optimizer's ``state``, without what only hivemind's first step has made."""
        made = {index for index, parameter in enumerate(self.parameters) if self._is_made(parameter)}
        return {**state, "state": {index: value for index, value in state["state"].items() if index not in made}}

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Around loading a state: where that has none, the structure stays; calls before it no longer count."""
        before = {**self.optimizer.state}
        yield
        self._absent = None
        self._made = {}
        for parameter in self.parameters:
            if parameter not in self.optimizer.state and parameter in before:
                self._made[parameter] = self.optimizer.state[parameter] = before[parameter]

    def _before_step(self, *_: Any) -> None:
        """In the optimizer's step: leave out what has no gradient in any peer, and let torch make the states."""
        if self._absent is None:
            return  # hivemind's first step
        for parameter in self._absent:
            # Another peer may have had a gradient.
            if parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None
        self._absent = None
        for parameter in [*self._made]:
            if parameter.grad is not None:
                self._forget(parameter)

    def _is_made(self, parameter: Tensor) -> bool:
        made = self._made.get(parameter)
        return made is not None and self.optimizer.state.get(parameter) is made

    def _forget(self, parameter: Tensor) -> None:
        """Remove a state that is not the optimizer's own, unless another peer's was loaded."""
        if self._is_made(parameter):
            del self.optimizer.state[parameter]
        del self._made[parameter]
