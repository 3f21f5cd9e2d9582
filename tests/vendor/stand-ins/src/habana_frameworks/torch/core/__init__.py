"""The lazy mode's step marks. Importing it gives torch the simulated devices."""

from __future__ import annotations

import acme_driver
from stand_ins import device_count, recorded

__all__ = ["mark_step"]

_module = acme_driver.simulate("hpu", device_count("HPU_DEVICES"), collectives="hccl")


@recorded("mark_step")
def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Run what the lazy mode has gathered: nothing, since the simulation gathers nothing."""
