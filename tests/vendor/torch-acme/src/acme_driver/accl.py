"""ACCL, the collective backend of the devices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

__all__ = ["register"]


def register(name: str, device_type: str, native: Any) -> None:
    """Make ``name`` the ``torch.distributed`` backend of ``device_type``."""

    def create(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
        return native.Accl(dist.ProcessGroupGloo(store, rank, size, timeout), name)

    # torch has kernels for collectives on types from outside, not on every one that it knows: there they run on the
    # host's, which ask for the backend of the host.
    known = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", _key(device_type))
    dist.Backend.register_backend(name, create, devices=[device_type] if known else ["cpu", device_type])


def _key(device_type: str) -> str:
    own = torch._C._get_privateuse1_backend_name()
    return "PrivateUse1" if device_type == own else device_type.upper()
