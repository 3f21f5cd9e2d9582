"""Strategies with one device, with one process per device, and with one process for all devices."""

from torch_hal_xla.strategies.parallel import XLAStrategy
from torch_hal_xla.strategies.single import SingleXLAStrategy
from torch_hal_xla.strategies.spmd import XLASPMDStrategy

__all__ = ["SingleXLAStrategy", "XLASPMDStrategy", "XLAStrategy"]
