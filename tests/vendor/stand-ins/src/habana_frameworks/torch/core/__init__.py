"""The lazy mode's step marks. Importing it gives torch the simulated devices."""

from __future__ import annotations

from typing import Any

import acme_driver
import torch
import torch.distributed as dist
from stand_ins import device_count, recorded

from habana_frameworks.torch.utils.internal import is_lazy

__all__ = ["is_lazy", "mark_step"]

_module = acme_driver.simulate("hpu", device_count("HPU_DEVICES"), collectives="hccl")


@recorded("mark_step")
def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Run what the lazy mode has gathered: nothing, since the simulation gathers nothing."""


# As the library does, put functions in the place of torch's that know the devices, and not all arguments of torch's.

_manual_seed, _init_process_group = torch.manual_seed, dist.init_process_group


def _seed_all(seed: int) -> torch.Generator:
    _module.manual_seed_all(seed)
    return _manual_seed(seed)


def _join(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
) -> None:
    _init_process_group(backend, init_method, timeout, world_size, rank, store, group_name, pg_options)


torch.manual_seed = _seed_all
dist.init_process_group = _join  # type: ignore[assignment]
