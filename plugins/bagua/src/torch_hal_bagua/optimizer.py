"""Adam for the algorithm ``qadam``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_hal.errors import ConfigurationError
from torch_hal_bagua.options import whole_number

__all__ = ["QAdamOptimizer"]


class QAdamOptimizer(Optimizer):
    """Adam whose second moment stays constant after a warm-up, so that the momentum can be sent in few bits.

    For ``k`` up to ``warmup_steps``, with the averaged gradient ``g``::

        m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g²

    After the warm-up ``v`` stays constant. Under the algorithm ``qadam``, ``grad`` then holds the momentum ``m``,
    averaged over all processes; elsewhere ``m = b1 m + (1 - b1) g``. Every step is::

        p -= lr / (1 - b1^k) * m / (sqrt(v) / sqrt(1 - b2^k) + eps)

    Args:
        params: Parameters or parameter groups.
        lr: The learning rate.
        warmup_steps: The number of plain Adam steps at the start; at least 1, which the second moment needs.
        betas: The decay rates of the momentum and the second moment.
        eps: Added to the denominator.
        weight_decay: An L2 penalty: ``weight_decay * p`` is added to the gradient.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if not value >= 0:
                raise ConfigurationError(f"{name}={value!r}: expected a number of at least 0.")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigurationError(f"betas={betas!r}: expected two numbers from 0 to below 1.")
        self.warmup_steps = whole_number("warmup_steps", warmup_steps, 1)
        self.receives_momentum = False
        """Whether ``grad`` holds the averaged momentum after the warm-up; the algorithm sets this."""
        super().__init__(
            params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "steps": 0}
        )

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        steps: int = self.param_groups[0]["steps"]
        return steps

    @property
    def is_warming_up(self) -> bool:
        """Whether the next step is one of plain Adam."""
        return self.steps < self.warmup_steps

    def moments(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """Momentum and second moment of ``parameter``, zero before its first gradient."""
        state = self.state[parameter]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state["exp_avg"], state["exp_avg_sq"]

    @torch.no_grad()
    def advance_momentum(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Replace ``gradient`` by the momentum that results from it; the stored momentum does not change."""
        if group["weight_decay"]:
            gradient.add_(parameter, alpha=group["weight_decay"])
        beta = group["betas"][0]
        gradient.mul_(1 - beta).add_(self.moments(parameter)[0], alpha=beta)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; returns what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        is_warming_up = self.is_warming_up
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._apply(parameter, group, is_warming_up)
        return loss

    def _apply(self, parameter: Tensor, group: dict[str, Any], is_warming_up: bool) -> None:
        assert parameter.grad is not None
        momentum, second = self.moments(parameter)
        received = parameter.grad
        if is_warming_up or not self.receives_momentum:
            gradient = parameter.grad
            if group["weight_decay"]:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            momentum.lerp_(gradient, 1 - group["betas"][0])
            if is_warming_up:
                second.mul_(group["betas"][1]).addcmul_(gradient, gradient, value=1 - group["betas"][1])
            received = momentum
        steps = group["steps"]
        corrections = [1 - beta**steps for beta in group["betas"]]
        denominator = second.sqrt().div_(math.sqrt(corrections[1])).add_(group["eps"])
        parameter.addcdiv_(received, denominator, value=-group["lr"] / corrections[0])
