"""Horovod in torch-hal: strategy and cluster environment ``horovod``.

The public names are imported on first use: detecting Horovod's processes needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_horovod.environment import HorovodEnvironment
    from torch_hal_horovod.strategy import HorovodStrategy

__all__ = ["HorovodEnvironment", "HorovodStrategy"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "HorovodEnvironment": "torch_hal_horovod.environment",
        "HorovodStrategy": "torch_hal_horovod.strategy",
    },
)
