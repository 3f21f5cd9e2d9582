"""The conformance kit of core on the strategies of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_hal_devkit import check_backends

from torch_hal.specs import StrategySpec

TARGET = "torch_hal_parallel.strategy:ModelParallelStrategy"


def _named(name: str, target: str = TARGET, **options: Any) -> StrategySpec:
    return StrategySpec(name=name, target=target, description="of these tests", init_args=options)


PLAN = {"0": "colwise", "2": "rowwise"}
"""Of the kit's network."""
OF_THE_NETWORK = "-k=not test_buffers_are_those_of_rank_0 and not test_outputs_of_a_prepared_module"
"""Without the tests of other modules, whose parts have other names than in PLAN."""
SPECS = [
    _named("replicas"),
    _named("planned", tensor="node", tensor_parallel_plan=PLAN),
    _named("piped", pipeline="node"),
    # One that averages after each step gives the result of one process; another differs even on one process.
    _named("averaged", "torch_hal_parallel.diloco:DiLoCoStrategy", sync_every=1, outer_lr=1.0, outer_momentum=0.0),
    _named("seldom", "torch_hal_parallel.diloco:DiLoCoStrategy", sync_every=3),
]


KNOWN = Path(__file__).with_name("expected-failures-piped.toml")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        pytest.param("piped", (f"--expected-failures={KNOWN}",), 150, marks=pytest.mark.slow),
        pytest.param("averaged", (), 150, marks=pytest.mark.slow),
        pytest.param("seldom", ("--tiers=T3",), 50, marks=pytest.mark.exhaustive),
        pytest.param("replicas", (), 150, marks=pytest.mark.exhaustive),
        pytest.param("planned", ("--tiers=T2,T3", OF_THE_NETWORK), 120, marks=pytest.mark.exhaustive),
    ],
)
def test_it_passes_the_kit(name: str, options: tuple[str, ...], least: int, tmp_path: Path) -> None:
    """All that is not declared otherwise works, on one process and on two, but for what a pipeline cannot do."""
    check_backends(f"strategy:{name}", folder=tmp_path, options=options, specs=SPECS, min_passed=least)
