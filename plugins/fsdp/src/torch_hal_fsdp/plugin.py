"""The backends of this package; importing it imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import StrategySpec

__all__ = ["core_strategies"]

_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "fsdp": ("FSDP2: parameters, gradients and optimizer state divided among all processes", {}),
    "fsdp_cpu_offload": ("fsdp, with what is divided kept in the host's memory", {"cpu_offload": True}),
    "fsdp_hybrid": ("fsdp within each machine, replicas between machines", {"replicas": "nodes"}),
    "fsdp_tensor_parallel": (
        "fsdp between machines, tensor parallelism by a plan within each",
        {"tensor_parallel_size": "node"},
    ),
}


@hookimpl
def core_strategies() -> Iterator[StrategySpec]:
    """The four names of :class:`torch_hal_fsdp.FSDPStrategy`."""
    for name, (description, options) in _NAMES.items():
        yield StrategySpec(
            name=name,
            target="torch_hal_fsdp.strategy:FSDPStrategy",
            description=description,
            init_args=options,
        )
