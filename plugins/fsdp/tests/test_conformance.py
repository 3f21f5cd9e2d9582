"""The conformance kit of core on the strategies of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_hal_devkit import check_backends

from torch_hal.specs import StrategySpec

TARGET = "torch_hal_fsdp.strategy:FSDPStrategy"


def _named(name: str, min_processes: int = 1, **options: Any) -> StrategySpec:
    return StrategySpec(
        name=name, target=TARGET, description="of these tests", min_processes=min_processes, init_args=options
    )


PLAN = {"0": "colwise", "2": "rowwise"}
"""Of the kit's network."""
OF_THE_NETWORK = "-k=not test_buffers_are_those_of_rank_0 and not test_outputs_of_a_prepared_module"
"""Without the tests of other modules, whose parts have other names than in PLAN."""
SPECS = [
    _named("planned", tensor_parallel_size="node", tensor_parallel_plan=PLAN),
    _named("replicated", min_processes=2, replicas=2),
    _named("full", state_dict_type="full"),
]
"""What the names cannot do on one machine with two processes: the model has no plan, and one machine one replica."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        ("fsdp", (), 150),
        pytest.param("fsdp_cpu_offload", (), 150, marks=pytest.mark.exhaustive),
        pytest.param("fsdp_hybrid", (), 150, marks=pytest.mark.exhaustive),
        pytest.param("fsdp_tensor_parallel", ("--tiers=T0,T1",), 26, marks=pytest.mark.slow),
        pytest.param("planned", ("--tiers=T2,T3", OF_THE_NETWORK), 120, marks=pytest.mark.slow),
        pytest.param("replicated", ("--tiers=T3",), 60, marks=pytest.mark.slow),
        pytest.param("full", ("--tiers=T2,T3",), 120, marks=pytest.mark.exhaustive),
    ],
)
def test_it_passes_the_kit(name: str, options: tuple[str, ...], least: int, tmp_path: Path) -> None:
    """All that is not declared otherwise works, on one process and on two; nothing is expected to fail."""
    check_backends(f"strategy:{name}", folder=tmp_path, options=options, specs=SPECS, min_passed=least)
