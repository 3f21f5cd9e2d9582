"""16-mixed and bf16-mixed: float32 parameters, autocast to a 16-bit dtype."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.errors import BackendError, ConfigurationError, WrongTypeError, quoted
from core.precisions.base import Precision
from core.precisions.dtypes import half_dtype, widen

__all__ = ["MixedPrecision"]

_log = logging.getLogger(__name__)

_NAMES = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed"}
_SCALING_HOOKS = ("backward", "optimizer_step", "unscale_gradients", "clip_gradients")
_WITHOUT_AUTOCAST = ("32-true", "bf16-true", "16-true", "64-true")


class MixedPrecision(Precision):
    """Float32 parameters; matrix products and the like in a 16-bit dtype, as :class:`torch.autocast` decides.

    Inputs are taken as they are: autocast converts where an operation wants it. What the module returns in the 16-bit
    dtype is handed over in float32.

    With float16 the loss is scaled, by one :class:`torch.amp.GradScaler` for all optimizers. Its scale is updated once
    after the steps that follow a backward pass, however many optimizers took one: at the next backward pass, or when
    the state is asked for. So every gradient is unscaled by what its loss was scaled by.

    Args:
        dtype: ``"float16"`` for 16-mixed, ``"bfloat16"`` for bf16-mixed, or the :class:`torch.dtype`.
        scaler: What scales the loss under 16-mixed, in place of torch's scaler in its defaults.

    Raises:
        ConfigurationError: ``dtype`` is another one, or a scaler is given for bfloat16.
        WrongTypeError: ``scaler`` is no GradScaler.
    """

    def __init__(self, dtype: str | torch.dtype, scaler: torch.amp.GradScaler | None = None) -> None:
        self.compute_dtype = half_dtype(dtype)
        self.name = _NAMES[self.compute_dtype]
        self.scales_loss = self.compute_dtype is torch.float16
        if scaler is not None and not self.scales_loss:
            raise ConfigurationError(f"scaler={scaler!r} with {self.name!r}, which scales no loss. Valid: '16-mixed'.")
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise WrongTypeError(f"scaler={scaler!r}: expected a torch.amp.GradScaler.")
        self.scaler = scaler
        self._autocast: Callable[[], torch.autocast] = _not_connected
        self._backwards = 0
        """Backward passes since the scale was updated."""
        self._unscaled: dict[Optimizer, int] = {}
        """Optimizers whose gradients are unscaled but not yet applied, and after how many backward passes."""
        self._stepped: set[Optimizer] = set()
        """Optimizers that took a step since the scale was updated."""

    def connect(self, device_type: str) -> None:
        """As in the base class; refused where torch has no such autocast there, or cannot scale a loss there."""
        fault = _autocast_fault(device_type, self.compute_dtype)
        if fault is None and self.scales_loss and self.scaler is None:
            fault = _scaling_fault(device_type)
        if fault is not None:
            raise BackendError(
                f"precision={self.name!r} cannot be had on device type {device_type!r}: {fault} "
                f"Valid: {quoted(_valid_names(device_type))}."
            )
        self._autocast = partial(torch.autocast, device_type, dtype=self.compute_dtype)
        if self.scales_loss and self.scaler is None:
            self.scaler = torch.amp.GradScaler(device_type)

    def acts_in(self, hook: str) -> bool:
        """As in the base class; without a scale, the hooks around it do nothing."""
        return super().acts_in(hook) and (self.scales_loss or hook not in _SCALING_HOOKS)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in float32."""
        return module.float()

    def forward_context(self) -> torch.autocast:
        """Autocast to the 16-bit dtype, on the type of device that was connected."""
        # A new one each time: an autocast object cannot be entered again while it is.
        return self._autocast()

    def convert_output(self, data: Any) -> Any:
        """``data`` with tensors of the 16-bit dtype in float32, and all others as they are."""
        return widen(data, self.compute_dtype, self.output_dtype)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar; under 16-mixed they are scaled."""
        if self.scales_loss:
            scaler = self._connected_scaler()
            if self._stepped:
                self._update(scaler)
            self._backwards += 1
            loss = scaler.scale(loss)
        super().backward(loss, *args, **kwargs)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """As in the base class.

        Raises:
            ConfigurationError: There was another backward pass since, but no step: what is unscaled and what is not
                can no longer be told apart.
        """
        if not self.scales_loss or self._unscaled.get(optimizer) == self._backwards:
            return
        if optimizer in self._unscaled:
            raise ConfigurationError(
                f"precision={self.name!r}: the gradients were unscaled (to clip them, say) before their last backward "
                f"pass. Valid: to unscale after the last backward pass of a step, and then to call optimizer_step, "
                f"which leaves out a step whose gradients are not finite."
            )
        self._connected_scaler().unscale_(optimizer)
        self._unscaled[optimizer] = self._backwards

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """As in the base class.

        Raises:
            ConfigurationError: The gradients are still scaled, or another algorithm was named.
        """
        if self._backwards and not self._unscaled:
            raise ConfigurationError(
                f"precision={self.name!r}: gradients cannot be clipped while they are scaled. Valid: to call "
                f"unscale_gradients(optimizer) first."
            )
        return super().clip_gradients(parameters, clip_value, algorithm, norm_type)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """As in the base class. Under 16-mixed a step whose gradients are not finite is left out, and returns ``None``.

        Raises:
            ConfigurationError: Under 16-mixed: a closure is given, or the loss did not go through :meth:`backward`.
        """
        if not self.scales_loss:
            return super().optimizer_step(optimizer, closure)
        if closure is not None:
            raise ConfigurationError(
                f"precision={self.name!r} with an optimizer closure: torch cannot scale the loss of a closure. Valid: "
                f"an optimizer that takes none, or {quoted(('bf16-mixed', *_WITHOUT_AUTOCAST))}."
            )
        if not self._backwards or optimizer in self._stepped:
            raise ConfigurationError(
                f"precision={self.name!r}: {type(optimizer).__name__} is to take a step, but no backward pass of a "
                f"scaled loss came before it. Valid: this precision's backward(loss), then one step of each optimizer."
            )
        if optimizer not in self._unscaled and not _has_gradients(optimizer):
            return optimizer.step()
        result = self._connected_scaler().step(optimizer)
        self._unscaled.pop(optimizer, None)
        self._stepped.add(optimizer)
        return result

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state after the last step; empty under bf16-mixed."""
        if not self.scales_loss:
            return {}
        scaler = self._connected_scaler()
        if self._stepped:
            self._update(scaler)
        return scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; one of a run in another precision leaves the scale as it is."""
        if self.scales_loss and state:
            self._connected_scaler().load_state_dict(state)
        elif self.scales_loss or state:
            _log.warning("precision=%r: the state is of another precision, and its loss scale is not used", self.name)

    def _update(self, scaler: torch.amp.GradScaler) -> None:
        scaler.update()
        self._stepped.clear()
        self._unscaled.clear()
        self._backwards = 0

    def _connected_scaler(self) -> torch.amp.GradScaler:
        return self.scaler if self.scaler is not None else _not_connected()


def _not_connected() -> Any:
    raise ConfigurationError("This MixedPrecision is not connected. Valid: connect(device_type) first.")


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _valid_names(device_type: str) -> list[str]:
    mixed = [
        name
        for dtype, name in _NAMES.items()
        if _autocast_fault(device_type, dtype) is None
        and (dtype is not torch.float16 or _scaling_fault(device_type) is None)
    ]
    return [*mixed, *_WITHOUT_AUTOCAST]


def _autocast_fault(device_type: str, dtype: torch.dtype) -> str | None:
    """Why torch has no autocast to ``dtype`` there; where it has not, it may only warn, and compute in float32."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.autocast(device_type, dtype=dtype)
    except (RuntimeError, AssertionError, Warning) as error:
        return f"{error}".partition("\n")[0]
    return None


def _scaling_fault(device_type: str) -> str | None:
    """Why torch cannot scale a loss there: found out by a step with an infinite gradient, which must be left out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scaler = torch.amp.GradScaler(device_type)
            weight = nn.Parameter(torch.zeros(1, device=device_type))
            weight.grad = torch.full_like(weight, math.inf)
            optimizer = torch.optim.SGD([weight], lr=1.0)
            before = scaler.scale(torch.ones((), device=device_type)).item()
            scaler.step(optimizer)
            scaler.update()
            works = scaler.get_scale() == before * scaler.get_backoff_factor() and weight.item() == 0
    except (RuntimeError, AssertionError, Warning) as error:
        return f"{error}".partition("\n")[0]
    return None if works else "its loss scaling does not leave out a step with an infinite gradient."
