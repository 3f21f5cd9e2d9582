"""Optimizers that run on the device and hand out their state, unlike torch's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["Adam", "AdamW", "Optimizer", "RMSprop", "SGD"]


class Optimizer:
    """What the library's optimizers have in addition to torch's."""

    def _begin(self, loss_scaling: float | None) -> None:
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self._device_state: dict[str, Any] = {"ipu_state": None, "ipu_param": None}

    def get_state_dict(self) -> dict[str, Any]:
        """As it was last read from the device."""
        return {**self._device_state, **torch.optim.Optimizer.state_dict(self)}  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """The device's state, where a model is compiled with it."""
        return self.get_state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it; it goes to the device when a model is attached."""
        torch.optim.Optimizer.load_state_dict(self, state)  # type: ignore[arg-type]
        if not {"ipu_state", "ipu_param"} <= set(state):
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        self.set_device_state(state)

    def set_device_state(self, state: Mapping[str, Any]) -> None:
        """Keep what was read from the device, or is to go to it."""
        self._device_state = {key: state[key] for key in ("ipu_state", "ipu_param")}

    def has_state(self) -> bool:
        """Whether there is anything for the device."""
        return self._device_state["ipu_state"] is not None


class SGD(Optimizer, torch.optim.SGD):
    """SGD on the device."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scaling: float | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        torch.optim.SGD.__init__(self, params, lr, momentum, dampening, weight_decay, nesterov)
        self._begin(loss_scaling)
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm


class _AnyAdam(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        loss_scaling: float | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)  # type: ignore[call-arg]
        self._begin(loss_scaling)
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm


class Adam(_AnyAdam, torch.optim.Adam):
    """Adam on the device."""


class AdamW(_AnyAdam, torch.optim.AdamW):
    """AdamW on the device."""


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop on the device; it limits no gradients."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        loss_scaling: float | None = None,
    ) -> None:
        torch.optim.RMSprop.__init__(self, params, lr, alpha, eps, weight_decay, momentum, centered)
        self._begin(loss_scaling)
