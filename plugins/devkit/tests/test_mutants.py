"""Each rule of the kit is noticed where it is broken: by the test meant for it, with a message that says so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from .kit import SIMULATED, run_kit
from .mutants import DEVICE, HARDWARE, IMPORTS, METADATA, MUTANTS, TRAINING, Mutant, lay_down
from .mutants_of_modules import DEVICE_LIFE, DEVICE_VALUES
from .mutants_of_values import EACH_DEVICE

_GROUPS = {"metadata": METADATA, "imports": IMPORTS, "hardware": HARDWARE, "device": DEVICE, "training": TRAINING}
_GROUPS |= {"each device": EACH_DEVICE, "device values": DEVICE_VALUES, "device life": DEVICE_LIFE}


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", _GROUPS)
def test_each_mutant_is_noticed(group: str, tmp_path: Path) -> None:
    """For each mutant the one test that is run fails, and its message names what was broken."""
    _check(_GROUPS[group], tmp_path)


@pytest.mark.slow
def test_a_draw_is_noticed(tmp_path: Path) -> None:
    """So it is for one mutant of each group, and for every twelfth."""
    _check([mutant for group in _GROUPS.values() for mutant in group[2::12]], tmp_path)


def _check(mutants: Sequence[Mutant], tmp_path: Path) -> None:
    site = tmp_path / "site"
    lay_down(site, mutants)
    names = dict.fromkeys(f"{mutant.kind}:{mutant.name}" for mutant in mutants)
    backends = [argument for name in names for argument in ("--backend", name)]
    run = run_kit(
        tmp_path,
        *backends,
        "--hide-devices=SIMX_DEVICES=0",
        site=[site, SIMULATED],
        suite=[mutant.node for mutant in mutants],
    )
    assert run.code == 1, run.output
    assert run.ids("failed") == {mutant.id for mutant in mutants}, run.output
    reasons = {mutant.id: (mutant.says, run.tests[mutant.id]["reason"]) for mutant in mutants}
    wrong = {name: pair for name, pair in reasons.items() if not re.search(*pair)}
    assert not wrong, "\n".join(f"{name}: {reason!r}. Expected: {says!r}" for name, (says, reason) in wrong.items())


def test_there_are_enough() -> None:
    """At least twenty rules are broken, each by its own mutant."""
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS) >= 20
