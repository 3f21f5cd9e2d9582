"""Bagua's algorithms for torch-hal, on torch.distributed.

Source: Gan et al., BAGUA: Scaling up Distributed Learning with System Relaxations, PVLDB 15(4), 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_bagua.optimizer import QAdamOptimizer
    from torch_hal_bagua.strategy import BaguaStrategy

__all__ = ["BaguaStrategy", "QAdamOptimizer"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BaguaStrategy": "torch_hal_bagua.strategy",
        "QAdamOptimizer": "torch_hal_bagua.optimizer",
    },
)
