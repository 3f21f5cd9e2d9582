"""A function in the one process that the real torch_xla.launch starts for one device."""

from __future__ import annotations

import json
from typing import Any

from torch_hal_xla.strategies import XLAStrategy
from torch_hal_xla.strategies.launcher import launch

from torch_hal import Runtime
from torch_hal.errors import LaunchError


def work() -> dict[str, Any]:
    """What a launched process finds."""
    with Runtime(accelerator="xla", strategy="xla") as runtime:
        runtime.launch()
        strategy, environment = runtime.strategy, runtime.strategy.cluster_environment
        return {
            "environment": environment.name,
            "ranks": [strategy.global_rank, strategy.local_rank, strategy.node_rank],
            "sizes": [strategy.world_size, environment.local_world_size, environment.num_nodes],
            "address": environment.main_address,
            "device": str(strategy.root_device),
            "gathered": strategy.all_gather_object("said"),
        }


def fail() -> None:
    """Raise in the process."""
    raise ValueError("enough")


if __name__ == "__main__":
    strategy = XLAStrategy()
    Runtime(accelerator="xla", strategy=strategy)
    told = launch(strategy, work, (), {})
    try:
        launch(strategy, fail, (), {})
    except LaunchError as error:
        told["failed"] = str(error)
    print(json.dumps(told))
