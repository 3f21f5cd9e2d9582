"""A run killed at a random moment loses no checkpoint, leaves nothing, and resumes to the bits of one that was not."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from .killing import SETUPS, Case, Killer

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")

KILLS = 300
SEEDS = [
    pytest.param(seed, marks=pytest.mark.slow if seed in (3, 16) else pytest.mark.exhaustive) for seed in range(KILLS)
]
"""CI kills rank 0 of ``ddp_fork`` with ``sharded``, and a process that writes in the background."""


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    """One for all, so that it runs once what is not killed."""
    with Killer(tmp_path_factory.mktemp("kills")) as made:
        yield made


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_run_goes_on_from_its_last_checkpoint(seed: int, killer: Killer) -> None:
    """One of its processes or all, under each launcher, with each CheckpointIO, after none to nine checkpoints."""
    case = Case.draw(seed)
    if case.setup == "fsdp" and importlib.util.find_spec("torch_hal_fsdp") is None:
        pytest.skip("torch-hal-fsdp is not installed")
    outcome = killer.run(case)
    assert outcome.is_well, (case, outcome)


def test_the_draw_meets_each_setup_and_format() -> None:
    """With which CheckpointIOs each strategy and launcher is killed, and whose process."""
    cases = [Case.draw(seed) for seed in range(KILLS)]
    assert {(case.setup, case.io) for case in cases} == {(setup, io) for setup in SETUPS for io in SETUPS[setup]}
    victims = {(case.setup, case.victim) for case in cases if case.setup != "single_device"}
    assert len(victims) == 4 * (len(SETUPS) - 1)
