"""DeepSpeed in torch-hal: its engine runs backward and step, and shards the model over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_deepspeed.checkpoints import DeepSpeedCheckpointIO
    from torch_hal_deepspeed.consolidate import consolidate
    from torch_hal_deepspeed.environment import DeepSpeedEnvironment
    from torch_hal_deepspeed.script_settings import DeepSpeedPlugin
    from torch_hal_deepspeed.strategy import DeepSpeedStrategy

__all__ = ["DeepSpeedCheckpointIO", "DeepSpeedEnvironment", "DeepSpeedPlugin", "DeepSpeedStrategy", "consolidate"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DeepSpeedCheckpointIO": "torch_hal_deepspeed.checkpoints",
        "DeepSpeedEnvironment": "torch_hal_deepspeed.environment",
        "DeepSpeedPlugin": "torch_hal_deepspeed.script_settings",
        "DeepSpeedStrategy": "torch_hal_deepspeed.strategy",
        "consolidate": "torch_hal_deepspeed.consolidate",
    },
)
