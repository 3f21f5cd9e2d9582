"""The driver of Acme's cards, which are simulated: how many there are, and the simulation.

Importing it imports no torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acme_driver.module import DeviceModule

__all__ = ["autoload", "count", "simulate"]


def count() -> int:
    """How many cards this machine has: what ``ACME_DEVICES`` says, else one for each device file ``/dev/acme<n>``.

    Raises:
        ValueError: ``ACME_DEVICES`` is not a whole number from 0.
    """
    said = os.environ.get("ACME_DEVICES", "").strip()
    if not said:
        return sum(name.startswith("acme") and name[4:].isdecimal() for name in os.listdir("/dev"))
    if not (said.isascii() and said.isdecimal()):
        raise ValueError(f"ACME_DEVICES={said!r}: not a number of devices. Valid: a whole number from 0.")
    return int(said)


def autoload() -> None:
    """Give torch the type ``acme`` on a machine that has cards; torch calls it when it is imported.

    So a process that is handed an Acme tensor or device, such as a spawned one, knows the type.
    """
    if count():
        import torch_acme  # noqa: F401


def simulate(
    device_type: str, devices: int, *, collectives: str = "accl", memory_per_device: int = 16 * 2**30
) -> DeviceModule:
    """Make ``devices`` simulated devices known to torch in this process; once for each, and of one type.

    The first call compiles the simulation for this torch, which takes half a minute; see :mod:`acme_driver.build`.

    Args:
        device_type: A name of the simulation's own, such as ``"acme"``; or a type that torch knows and this machine
            lacks: ``"hpu"``, ``"ipu"``, ``"mps"``, ``"xla"`` or ``"xpu"``.
        devices: How many.
        collectives: The name of their ``torch.distributed`` backend.
        memory_per_device: In bytes; more than that is refused as out of memory.

    Returns:
        The device module, from then on also ``torch.<device_type>`` where torch has none.

    Raises:
        RuntimeError: This process simulates others already, or has such devices.
    """
    import torch  # noqa: F401 - before what follows imports it, since torch calls autoload

    from acme_driver.simulation import start

    return start(device_type, devices, collectives, memory_per_device)
