"""Lightning's Trainer and Fabric on what torch-hal plans: any installed accelerator, strategy, precision and format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_lightning.fabric import Fabric
    from torch_hal_lightning.trainer import Trainer

__all__ = ["Fabric", "Trainer"]

# Only when asked for: Lightning's Trainer takes seconds to import, and its Fabric needs none of it.
__getattr__, __dir__ = lazy_names(
    __name__, {"Fabric": "torch_hal_lightning.fabric", "Trainer": "torch_hal_lightning.trainer"}
)
