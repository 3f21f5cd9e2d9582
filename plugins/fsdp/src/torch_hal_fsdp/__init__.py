"""torch's FSDP2 in torch-hal: a module's parameters, gradients and optimizer state sharded over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_fsdp.script_settings import FullyShardedDataParallelPlugin
    from torch_hal_fsdp.strategy import FSDPStrategy

__all__ = ["FSDPStrategy", "FullyShardedDataParallelPlugin"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "FSDPStrategy": "torch_hal_fsdp.strategy",
        "FullyShardedDataParallelPlugin": "torch_hal_fsdp.script_settings",
    },
)
