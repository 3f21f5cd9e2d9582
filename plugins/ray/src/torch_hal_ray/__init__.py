"""Ray in torch-hal: cluster environment ``ray``, and core's Trainer and Runtime inside of Ray Train.

The public names are imported on first use: detecting Ray's processes needs neither torch nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_ray.environment import RayEnvironment
    from torch_hal_ray.reporting import RayReport, report, resumed
    from torch_hal_ray.scaling import scaling_config, torch_config

__all__ = ["RayEnvironment", "RayReport", "report", "resumed", "scaling_config", "torch_config"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "RayEnvironment": "torch_hal_ray.environment",
        "RayReport": "torch_hal_ray.reporting",
        "report": "torch_hal_ray.reporting",
        "resumed": "torch_hal_ray.reporting",
        "scaling_config": "torch_hal_ray.scaling",
        "torch_config": "torch_hal_ray.scaling",
    },
)
