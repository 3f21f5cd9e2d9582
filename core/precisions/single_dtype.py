"""64-true, 32-true, 16-true and bf16-true: everything in one floating point dtype, but for the optimizer's state.

That is in float32 for parameters of 16 bits. Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section
3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigurationError
from .base import Precision
from .dtypes import DefaultDtype, KeptParts, Parts, half_dtype, read_parts, require_dtype, to_floating, widen

MASTER = "master_weight"
"""The key of a parameter's float32 value in the optimizer's state. So updates too small for the parameter add up."""


@contextmanager
def wide_copies(
    optimizer: Optimizer, dtype: torch.dtype = torch.float32
) -> Iterator[list[tuple[nn.Parameter, nn.Parameter]]]:
    """A context in which ``optimizer`` has copies in ``dtype`` in place of its narrower parameters, with their state.

    A precision's ``optimizer_step`` gives the copies values and gradients, steps, and rounds them into the parameters.
    It must not give a parameter's ``data`` another dtype instead: torch then adds its gradients in a new place, and
    DistributedDataParallel, which watches the first one, no longer averages them.

    Yields:
        Each narrower parameter with its copy, which has no gradient yet.
    """
    copies: dict[nn.Parameter, nn.Parameter] = {}
    given = [list(group["params"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.is_floating_point() and parameter.dtype.itemsize < dtype.itemsize:
                copies[parameter] = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
        group["params"] = [copies.get(parameter, parameter) for parameter in group["params"]]
    _rename(optimizer, copies)
    try:
        yield list(copies.items())
    finally:
        for group, parameters in zip(optimizer.param_groups, given, strict=True):
            group["params"] = parameters
        _rename(optimizer, {own: parameter for parameter, own in copies.items()})


def _rename(optimizer: Optimizer, names: Any) -> None:
    """Move the state of each tensor to another."""
    for old, new in names.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


class _SingleDtype(Precision):
    """Everything in ``param_dtype``."""

    def connect(self, device_type: str) -> None:
        """See the base class; raises where the device does not support the dtype."""
        require_dtype(self.name, self.param_dtype, device_type)

    def forward_context(self) -> DefaultDtype:
        """Tensors created in the forward pass have the declared dtype too."""
        return DefaultDtype(self.param_dtype)

    def convert_input(self, data: Any) -> Any:
        """``data`` with all floating point tensors in the declared dtype."""
        return to_floating(data, self.param_dtype)


class DoublePrecision(_SingleDtype):
    """Everything in float64: parameters, buffers, floating point inputs, tensors created in forward, outputs."""

    name = "64-true"
    param_dtype = torch.float64
    compute_dtype = torch.float64
    reduce_dtype = torch.float64
    buffer_dtype = torch.float64
    output_dtype = torch.float64

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in the declared dtype."""
        return module.double()


class FullPrecision(Precision):
    """Everything in float32. No hook runs in the loop.

    A module in another floating point dtype is converted; inputs are used as they are.
    """

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in float32."""
        return module.float()


class HalfPrecision(_SingleDtype):
    """Everything in a 16-bit dtype: parameters, buffers, floating point inputs, tensors created in forward.

    Outputs in that dtype are converted to float32, and so is a loss computed from them. The loss is not scaled:
    gradients below float16's range become zero.

    Args:
        dtype: ``"float16"`` for 16-true, ``"bfloat16"`` for bf16-true, or the :class:`torch.dtype`.
        keep_float32: Parts of the module that stay in float32: classes of modules, and names as in ``named_modules``,
            of which the end is enough. Their inputs are converted to float32, and their outputs to the 16-bit dtype.
        state_dtype: ``"float32"`` lets optimizers work on float32 copies of the parameters, with their state in
            float32; the parameters get the rounded values. By default the state has the parameters' dtype.

    Raises:
        ConfigurationError: ``dtype`` is not a 16-bit dtype, or ``state_dtype`` is something else; or, when a module is
            converted, it lacks a part, or a part shares parameters with the rest.
        WrongTypeError: ``keep_float32`` is something else.
    """

    def __init__(
        self,
        dtype: str | torch.dtype,
        keep_float32: Parts = (),
        state_dtype: str | torch.dtype | None = None,
    ) -> None:
        self.param_dtype = self.compute_dtype = self.reduce_dtype = self.buffer_dtype = half_dtype(dtype)
        self.name = "16-true" if self.param_dtype is torch.float16 else "bf16-true"
        self.state_dtype = None if state_dtype in (None, self.param_dtype) else torch.float32
        if state_dtype not in (None, "float32", torch.float32, self.param_dtype):
            raise ConfigurationError(f"state_dtype={state_dtype!r}: must be 'float32', or None for the dtype itself.")
        self.keep_float32 = read_parts(keep_float32)
        self._kept = KeptParts(self.keep_float32, partial(DefaultDtype, torch.float32), self.param_dtype)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in the declared dtype."""
        if self.keep_float32:
            return self._kept.convert(module, self.param_dtype)
        return module.half() if self.param_dtype is torch.float16 else module.bfloat16()

    def overrides(self, hook: str) -> bool:
        """See the base class; ``optimizer_step`` counts only with another ``state_dtype``."""
        return super().overrides(hook) and (hook != "optimizer_step" or self.state_dtype is not None)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Like the base class, on copies in ``state_dtype``.

        Raises:
            ConfigurationError: A closure is given with ``state_dtype="float32"``.
        """
        if self.state_dtype is None:
            return super().optimizer_step(optimizer, closure)
        if closure is not None:
            raise ConfigurationError(
                f"precision={self.name!r}: step was given a closure, which computes gradients of the parameters and "
                "not of their float32 copies. Use an optimizer that needs no closure, or leave out state_dtype."
            )
        with wide_copies(optimizer) as copies:
            values = {parameter: optimizer.state[own].pop(MASTER, None) for parameter, own in copies}
            for parameter, own in copies:
                if values[parameter] is not None:
                    own.data = values[parameter]
                own.grad = None if parameter.grad is None else parameter.grad.to(own.dtype)
            result = optimizer.step()
            with torch.no_grad():
                for parameter, own in copies:
                    parameter.copy_(own)
                    optimizer.state[own][MASTER] = own.detach()
        return result

    def teardown(self) -> None:
        """See the base class; parts are left as they were."""
        self._kept.release()

    def convert_output(self, data: Any) -> Any:
        """``data`` with tensors of the 16-bit dtype in float32, and all others as they are."""
        return widen(data, self.param_dtype, self.output_dtype)
