"""A stand-in for Graphcore's poptorch: whole compiled steps, run on the host.

A batch is split along its first dimension over device iterations, gradient accumulation and replicas. Each device
iteration is one step of the optimizer on the mean gradient of its parts.

As in the library, Python of a model runs once, when it is compiled; a compiled model takes inputs of one shape only;
weights and the optimizer's state are the device's own while a model is attached to it, and only optimizers of
``poptorch.optim`` hand out their state; IPUs that are attached to one model cannot be attached to another. Unlike in
the library, reading a parameter does not copy it from the device by itself.
"""

from __future__ import annotations

from stand_ins import device_count, recorded

from poptorch import optim
from poptorch.executor import PoplarExecutor, inferenceModel, trainingModel
from poptorch.graph import Error, identity_loss
from poptorch.options import Options, OutputMode

__all__ = [
    "Error",
    "Options",
    "OutputMode",
    "PoplarExecutor",
    "identity_loss",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "optim",
    "trainingModel",
]


@recorded("ipuHardwareIsAvailable")
def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:  # noqa: N802 - the library's name
    """Whether there are as many IPUs."""
    return device_count("IPU_DEVICES") >= num_ipus
