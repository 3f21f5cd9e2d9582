"""One device, one process for each device, and one process for all of them."""

from torch_hal_xla.strategies.parallel import XLAStrategy
from torch_hal_xla.strategies.single import SingleXLAStrategy
from torch_hal_xla.strategies.spmd import XLASPMDStrategy

__all__ = ["SingleXLAStrategy", "XLASPMDStrategy", "XLAStrategy"]
