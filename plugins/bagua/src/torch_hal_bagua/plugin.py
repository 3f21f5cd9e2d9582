"""The names that this plugin provides; light, without torch."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import StrategySpec

_DESCRIPTIONS = {
    "gradient_allreduce": "gradients averaged in full precision",
    "bytegrad": "gradients averaged in 8 bits",
    "decentralized": "weights averaged with all or with one other, while gradients are computed",
    "low_precision_decentralized": "differences of weights sent to two neighbours in 8 bits",
    "async": "weights averaged by a thread in the background",
    "qadam": "Adam whose momentum is averaged in 8 bits",
}


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """``bagua``, and a name for each algorithm."""
    names = {"bagua": "gradient_allreduce"} | {f"bagua_{algorithm}": algorithm for algorithm in _DESCRIPTIONS}
    return [
        StrategySpec(
            name=name,
            target="torch_hal_bagua.strategy:BaguaStrategy",
            description=f"Bagua's {algorithm}: {_DESCRIPTIONS[algorithm]}",
            init_args={"algorithm": algorithm},
        )
        for name, algorithm in names.items()
    ]
