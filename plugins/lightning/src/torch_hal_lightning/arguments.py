"""The arguments of Lightning's classes for a Plan: the same for its Trainer and its Fabric."""

from __future__ import annotations

from typing import Any

from torch_hal_lightning.parts import PlannedCheckpointIO, accelerator_for
from torch_hal_lightning.planning import Planned, has_checkpoint_io
from torch_hal_lightning.precision import precision_for

__all__ = ["lightning_arguments"]


def lightning_arguments(
    planned: Planned, strategy: Any, plugins: list[Any], accelerator: type[Any], precisions: Any
) -> dict[str, Any]:
    """What Lightning's constructor takes instead of names.

    Args:
        planned: The Plan.
        strategy: Lightning's, of the Plan.
        plugins: The user's, and others that the Plan needs; a precision and a checkpoint format of the user's stay.
        accelerator: The class ``Accelerator`` of Lightning's Trainer or Fabric.
        precisions: ``lightning.pytorch.plugins.precision`` or ``lightning.fabric.plugins.precision``.

    Raises:
        ConfigurationError: Lightning cannot run the precision.
    """
    parts = list(plugins)
    if not any(isinstance(plugin, precisions.Precision) for plugin in parts):
        parts.append(precision_for(planned, precisions))
    if planned.uses_core_format and not has_checkpoint_io(parts):
        parts.append(PlannedCheckpointIO(planned.strategy))
    return {
        "accelerator": accelerator_for(planned, accelerator),
        "strategy": strategy,
        "devices": len(planned.plan.devices),
        "num_nodes": planned.plan.num_nodes,
        "plugins": parts,
    }
