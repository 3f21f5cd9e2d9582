"""Bagua's algorithms for torch-hal, on torch.distributed.

Source: Gan et al., BAGUA: Scaling up Distributed Learning with System Relaxations, PVLDB 15(4), 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_hal_bagua.optimizer import QAdamOptimizer
    from torch_hal_bagua.strategy import BaguaStrategy

__all__ = ["BaguaStrategy", "QAdamOptimizer"]

_HOMES = {"BaguaStrategy": "strategy", "QAdamOptimizer": "optimizer"}


def __getattr__(name: str) -> Any:
    # Not imported above: core imports plugin.py without torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
