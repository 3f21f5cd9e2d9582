"""The planned precision as Lightning's object, on the planned device type."""

from __future__ import annotations

from typing import Any

import torch

from torch_hal.errors import ConfigurationError
from torch_hal.precisions import Precision
from torch_hal_lightning.planning import Planned

__all__ = ["precision_for"]


def precision_for(planned: Planned, plugins: Any) -> Any:
    """Lightning's precision object for a Plan.

    Args:
        planned: The Plan.
        plugins: ``lightning.pytorch.plugins.precision`` or ``lightning.fabric.plugins.precision``.

    Raises:
        ConfigurationError: It is a precision of a plugin, which scales the loss in a way of its own.
    """
    name = planned.plan.precision.name
    core: Precision = planned.strategy.precision
    if not _is_cores(core):
        return _adapted(core, plugins, name)
    if name in ("16-mixed", "bf16-mixed"):
        strategy = planned.strategy
        device_type = strategy.accelerator.autocast_device_type(torch.device(planned.plan.devices[0]))
        scaler = getattr(core, "scaler", None)
        return plugins.MixedPrecision(name, device_type, scaler)
    if name in ("16-true", "bf16-true"):
        return plugins.HalfPrecision(name)
    if name == "64-true":
        return plugins.DoublePrecision()
    return plugins.Precision()


def _is_cores(precision: Precision) -> bool:
    return type(precision).__module__.startswith("torch_hal.precisions") and not precision.keep_float32


def _adapted(core: Precision, plugins: Any, name: str) -> Any:
    if core.scales_loss or core.overrides("optimizer_step") or core.overrides("backward"):
        raise ConfigurationError(
            f"precision={name!r} cannot run under Lightning: it scales the loss, or acts in the optimizer's step. Use "
            "core.Trainer, or one of Lightning's precisions, such as 'bf16-mixed'."
        )

    class PlannedPrecision(plugins.Precision):
        """A precision of torch-hal that Lightning does not have."""

        precision = name

        def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
            return core.convert_module(module)

        def forward_context(self) -> Any:
            return core.forward_context()

        def convert_input(self, data: Any) -> Any:
            return core.convert_input(data)

        def convert_output(self, data: Any) -> Any:
            return core.convert_output(data)

    return PlannedPrecision()
