"""16-mixed and bf16-mixed: float32 parameters, autocast to a 16-bit dtype."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import BackendError, ConfigurationError, WrongTypeError, quoted
from ..utilities.torch_private import found_inf, mark_stepped
from .base import Precision, check_tensor
from .dtypes import KeptParts, Parts, half_dtype, read_parts, widen

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NAMES = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed"}
_SCALING_HOOKS = ("backward", "optimizer_step", "unscale_gradients", "clip_gradients")
_WITHOUT_AUTOCAST = ("32-true", "bf16-true", "16-true", "64-true")


class MixedPrecision(Precision):
    """Float32 parameters; operations that :class:`torch.autocast` selects run in a 16-bit dtype.

    Inputs are used as they are; autocast converts them where an operation needs it. Outputs in the 16-bit dtype are
    converted to float32.

    With float16, one :class:`torch.amp.GradScaler` scales the loss for all optimizers. Its scale is updated once after
    the optimizers' steps: at the next backward pass, or when the state is read. Gradients that then wait for the step
    of another optimizer are brought to the new scale. So every gradient is unscaled by the scale that it has.

    Args:
        dtype: ``"float16"`` for 16-mixed, ``"bfloat16"`` for bf16-mixed, or the :class:`torch.dtype`.
        scaler: Scales the loss under 16-mixed; a ``GradScaler`` with torch's defaults if ``None``.
        keep_float32: Parts of the module that autocast leaves in float32: classes of modules, and names as in
            ``named_modules``, of which the end is enough. Their inputs are converted to float32.

    Raises:
        ConfigurationError: ``dtype`` is not a 16-bit dtype, or a scaler is given for bfloat16; or, when a module is
            converted, it lacks a part.
        WrongTypeError: ``scaler`` is not a GradScaler, or ``keep_float32`` is something else.
    """

    def __init__(
        self, dtype: str | torch.dtype, scaler: torch.amp.GradScaler | None = None, keep_float32: Parts = ()
    ) -> None:
        self.compute_dtype = half_dtype(dtype)
        self.name = _NAMES[self.compute_dtype]
        self.scales_loss = self.compute_dtype is torch.float16
        if scaler is not None and not self.scales_loss:
            raise ConfigurationError(
                f"scaler={scaler!r} has no effect with precision={self.name!r}, which does not scale the loss. "
                f"Leave it out, or set precision='16-mixed'."
            )
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise WrongTypeError(f"scaler={scaler!r} must be a torch.amp.GradScaler, not {type(scaler).__name__}.")
        self.scaler = scaler
        self.keep_float32 = read_parts(keep_float32)
        self._kept = KeptParts(self.keep_float32, self._without_autocast, None)
        self.autocast_options: dict[str, bool] = {}
        """Arguments of :class:`torch.autocast` in each forward pass: ``enabled`` and ``cache_enabled``."""
        self._autocast: Callable[..., torch.autocast] = _not_connected
        self._device_type = "cpu"
        self._backwards = 0
        """Number of backward passes since the scale was updated."""
        self._unscaled: dict[Optimizer, int] = {}
        """Optimizers with unscaled gradients that are not applied yet, and the number of backward passes before."""
        self._stepped: set[Optimizer] = set()
        """Optimizers that were stepped since the scale was updated."""
        self._optimizers = WeakSet[Optimizer]()
        """The optimizers that were prepared."""
        self._found_inf: WeakKeyDictionary[Optimizer, list[Tensor]] = WeakKeyDictionary()
        """By optimizer, for each device: whether its last step had non-finite gradients, 1.0 or 0.0."""

    def connect(self, device_type: str) -> None:
        """See the base class; raises where torch has no such autocast, or cannot scale a loss."""
        fault = _autocast_fault(device_type, self.compute_dtype)
        if fault is None and self.scales_loss and self.scaler is None:
            fault = _scaling_fault(device_type)
        if fault is not None:
            raise BackendError(
                f"precision={self.name!r} is not supported on device type {device_type!r}: {fault} "
                f"Valid: {quoted(_valid_names(device_type))}."
            )
        self._device_type = device_type
        self._autocast = partial(torch.autocast, device_type, dtype=self.compute_dtype)
        if self.scales_loss and self.scaler is None:
            self.scaler = torch.amp.GradScaler(device_type)

    def overrides(self, hook: str) -> bool:
        """See the base class; under bf16-mixed, without loss scaling, its hooks count as not overridden."""
        return super().overrides(hook) and (self.scales_loss or hook not in _SCALING_HOOKS)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in float32."""
        return self._kept.convert(module, torch.float32) if self.keep_float32 else module.float()

    def _without_autocast(self) -> torch.autocast:
        return torch.autocast(self._device_type, enabled=False)

    def teardown(self) -> None:
        """See the base class; parts are left as they were."""
        self._kept.release()

    def forward_context(self) -> torch.autocast:
        """Autocast to the 16-bit dtype on the connected type of device, of the weights as they are now."""
        if torch.is_autocast_enabled(self._device_type):  # around several steps: torch would keep their first casts
            torch.clear_autocast_cache()
        return self.autocast(**self.autocast_options)

    def autocast(self, **options: bool) -> torch.autocast:
        """:class:`torch.autocast` to the 16-bit dtype on the connected type of device, with these arguments."""
        # A new one each time: an autocast object cannot be entered while it is active.
        return self._autocast(**options)

    def convert_output(self, data: Any) -> Any:
        """``data`` with tensors of the 16-bit dtype in float32, and all others as they are."""
        return widen(data, self.compute_dtype, self.output_dtype)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar; under 16-mixed they are scaled."""
        check_tensor(loss)
        super().backward(self.scale_loss(loss), *args, **kwargs)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """See the base class; a backward pass must follow."""
        if not self.scales_loss:
            return loss
        scaler = self._connected_scaler()
        if self._stepped:
            self._update(scaler)
        self._backwards += 1
        return scaler.scale(loss)

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """See the base class."""
        self._optimizers.add(optimizer)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """See the base class.

        Raises:
            ConfigurationError: Another backward pass ran since the gradients were unscaled: they are now partly scaled.
        """
        if not self.scales_loss or self._unscaled.get(optimizer) == self._backwards:
            return
        if optimizer in self._unscaled:
            raise ConfigurationError(
                f"precision={self.name!r}: the gradients were unscaled, for example by clipping, and then backward was "
                f"called again before the optimizer's step. Clip once, after the last backward pass of a step."
            )
        self._unscale(self._connected_scaler().unscale_, optimizer)
        self._unscaled[optimizer] = self._backwards

    def _unscale(self, call: Callable[[Optimizer], T], optimizer: Optimizer) -> T:
        """Call what unscales the gradients of ``optimizer``, which have to be 32-bit."""
        try:
            return call(optimizer)
        except ValueError as error:
            if "FP16 gradients" not in str(error):
                raise
            raise ConfigurationError(
                f"precision={self.name!r}: the optimizer has float16 parameters, whose gradients cannot be unscaled. "
                "Remove .half() and .to(torch.float16) of the module: this precision computes in float16 and keeps "
                "32-bit parameters. For float16 parameters set precision='16-true'."
            ) from error

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """See the base class.

        Raises:
            ConfigurationError: The gradients are still scaled, or an argument is invalid.
        """
        if self._backwards and not self._unscaled:
            raise ConfigurationError(
                f"precision={self.name!r}: gradients cannot be clipped while they are scaled. Call "
                f"unscale_gradients(optimizer) first; with a Runtime, prepare their optimizer."
            )
        return super().clip_gradients(parameters, clip_value, algorithm, norm_type)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """See the base class. Under 16-mixed, a step with non-finite gradients is skipped and returns ``None``.

        Raises:
            ConfigurationError: Under 16-mixed, a closure is given, or :meth:`backward` was not called before.
        """
        if not self.scales_loss:
            return super().optimizer_step(optimizer, closure)
        if closure is not None:
            raise ConfigurationError(
                f"precision={self.name!r}: step was given a closure, whose loss torch cannot scale. Use an optimizer "
                f"that needs no closure, or one of these precisions: {quoted(('bf16-mixed', *_WITHOUT_AUTOCAST))}."
            )
        if not self._backwards or optimizer in self._stepped:
            raise ConfigurationError(
                f"precision={self.name!r}: {type(optimizer).__name__}.step was called without a backward pass of the "
                f"scaled loss. Call runtime.backward(loss), not loss.backward(), then step each optimizer once."
            )
        if optimizer not in self._unscaled and not _has_gradients(optimizer):
            self._found_inf.pop(optimizer, None)
            return optimizer.step()
        scaler = self._connected_scaler()
        result = self._unscale(scaler.step, optimizer)
        if scaler.is_enabled():
            # Copies: updating the scale adds them up in place. They are read only if someone asks for them.
            self._found_inf[optimizer] = [tensor.clone() for tensor in found_inf(scaler, optimizer)]
        mark_stepped(optimizer)  # the scaler may skip its step
        self._unscaled.pop(optimizer, None)
        self._stepped.add(optimizer)
        return result

    def step_was_skipped(self, optimizer: Optimizer) -> bool:
        """See the base class; it waits until the device has computed the gradients."""
        return any(bool(found.item()) for found in self._found_inf.get(optimizer, ()))

    def state_dict(self) -> dict[str, Any]:
        """The loss scaler's state after the last step; empty under bf16-mixed."""
        if not self.scales_loss:
            return {}
        scaler = self._connected_scaler()
        if self._stepped:
            self._update(scaler)
        return scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; a state saved under another precision is ignored with a warning."""
        if self.scales_loss and state:
            self._connected_scaler().load_state_dict(state)
        elif self.scales_loss or state:
            _log.warning("precision=%r: ignored a state that was saved under another precision", self.name)

    def __getstate__(self) -> dict[str, Any]:
        if self._stepped:  # torch's scaler cannot be copied or pickled between a step and its update
            self._update(self._connected_scaler())
        return {name: value for name, value in self.__dict__.items() if name not in ("_found_inf", "_optimizers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _found_inf=WeakKeyDictionary(), _optimizers=WeakSet())

    def _update(self, scaler: torch.amp.GradScaler) -> None:
        waiting = self._waiting() if scaler.is_enabled() else []
        before = _scales(scaler, waiting)
        scaler.update()
        after = _scales(scaler, waiting)
        with torch.no_grad():
            for gradient, is_scaled in waiting:
                scale = after[gradient.device]
                gradient.mul_(scale / before[gradient.device] if is_scaled else scale)
        self._stepped.clear()
        self._unscaled.clear()
        self._backwards = 0

    def _waiting(self) -> list[tuple[Tensor, bool]]:
        """The gradients of optimizers that were not stepped since the scale was updated, and whether each is scaled."""
        waiting: list[tuple[Tensor, bool]] = []
        others = {one: one not in self._unscaled for one in (*self._unscaled, *self._optimizers)}
        others = {one: is_scaled for one, is_scaled in others.items() if one not in self._stepped}
        if not others:
            return waiting
        known = {id(parameter) for parameter in _parameters(self._stepped)}
        for optimizer, is_scaled in others.items():
            for parameter in _parameters([optimizer]):
                gradient: Any = parameter.grad
                if gradient is not None and id(parameter) not in known:
                    known.add(id(parameter))
                    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient  # of a DTensor
                    waiting.append((local, is_scaled))
        return waiting

    def _connected_scaler(self) -> torch.amp.GradScaler:
        return self.scaler if self.scaler is not None else _not_connected()


def _not_connected(**_: bool) -> Any:
    raise ConfigurationError("This MixedPrecision is not connected. Call connect(device_type) first.")


def _parameters(optimizers: Iterable[Optimizer]) -> Iterator[nn.Parameter]:
    return (parameter for one in optimizers for group in one.param_groups for parameter in group["params"])


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for parameter in _parameters([optimizer]))


def _scales(scaler: torch.amp.GradScaler, waiting: Iterable[tuple[Tensor, bool]]) -> dict[torch.device, Tensor]:
    """The scale, on the device of each gradient; reading it as a number would wait for the device."""
    devices = {gradient.device for gradient, _ in waiting}
    return {device: scaler.scale(torch.ones((), device=device)) for device in devices}


def _valid_names(device_type: str) -> list[str]:
    mixed = [
        name
        for dtype, name in _NAMES.items()
        if _autocast_fault(device_type, dtype) is None
        and (dtype is not torch.float16 or _scaling_fault(device_type) is None)
    ]
    return [*mixed, *_WITHOUT_AUTOCAST]


def _autocast_fault(device_type: str, dtype: torch.dtype) -> str | None:
    """Why torch cannot autocast to ``dtype`` there. In that case torch may only warn and compute in float32."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.autocast(device_type, dtype=dtype)
    except (RuntimeError, AssertionError, Warning) as error:
        return f"{error}".partition("\n")[0]
    return None


def _scaling_fault(device_type: str) -> str | None:
    """Why torch cannot scale a loss there, found with a step on an infinite gradient, which must be skipped."""
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
    return None if works else "its loss scaling does not skip a step with an infinite gradient."
