"""The backends of this package; importing it imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import StrategySpec

__all__ = ["core_strategies"]

_DIMENSIONS = {
    "tensor_parallel": ("tensor", "layers sharded by a plan within each machine, replicas between machines"),
    "pipeline": ("pipeline", "layers one after another in the processes of a machine, replicas between machines"),
    "context_parallel": ("context", "sequences split over the processes of a machine, replicas between machines"),
}


@hookimpl
def core_strategies() -> Iterator[StrategySpec]:
    """``diloco``, and the three names of :class:`torch_hal_parallel.ModelParallelStrategy`."""
    yield StrategySpec(
        name="diloco",
        target="torch_hal_parallel.diloco:DiLoCoStrategy",
        description="replicas that train on their own and seldom agree on weights, by an outer optimizer",
    )
    for name, (dimension, description) in _DIMENSIONS.items():
        yield StrategySpec(
            name=name,
            target="torch_hal_parallel.strategy:ModelParallelStrategy",
            description=description,
            init_args={dimension: "node"},
        )
