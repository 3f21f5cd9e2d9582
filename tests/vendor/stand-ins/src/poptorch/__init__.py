"""A stand-in for Graphcore's poptorch: whole compiled steps, run on the host.

A batch is split along its first dimension over device iterations, replicas and gradient accumulation, in that order.
Each device iteration is one step of the optimizer on the mean gradient of its parts.
"""

from __future__ import annotations

from stand_ins import device_count, recorded

from poptorch.executor import PoplarExecutor, identity_loss, inferenceModel, trainingModel
from poptorch.options import Options

__all__ = ["Options", "PoplarExecutor", "identity_loss", "inferenceModel", "ipuHardwareIsAvailable", "trainingModel"]


@recorded("ipuHardwareIsAvailable")
def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:  # noqa: N802 - the library's name
    """Whether there are as many IPUs."""
    return device_count("IPU_DEVICES") >= num_ipus
