"""As for accelerators: what breaks a rule of strategies, precisions, checkpoints or clusters is noticed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from torch_hal.kinds import KINDS

from .kit import SIMULATED, declare, run_kit
from .mutants import Mutant
from .mutants_of_modules import (
    CHECKPOINT_PATHS,
    CHECKPOINT_TRACES,
    CLUSTER_USE,
    MODULES,
    PRECISION_KEEPS,
    RATES_AND_ORDERS,
    UNUSUAL_TENSORS,
)
from .mutants_of_parts import CHECKPOINTS, CLUSTERS, COLLECTIVES, LIFE, PRECISIONS, TRAINING_TOGETHER
from .mutants_of_values import (
    CHECKPOINT_VALUES,
    CLUSTER_VALUES,
    EVALUATION_AND_OUTPUTS,
    PARTS,
    PRECISION_STEPS,
    SINGLE_STEPS,
)

_GROUPS = {
    "collectives": COLLECTIVES,
    "training together": TRAINING_TOGETHER,
    "life": LIFE,
    "precisions": PRECISIONS,
    "checkpoints": CHECKPOINTS,
    "clusters": CLUSTERS,
    "single steps": SINGLE_STEPS,
    "evaluation and outputs": EVALUATION_AND_OUTPUTS,
    "parts": PARTS,
    "precision steps": PRECISION_STEPS,
    "checkpoint values": CHECKPOINT_VALUES,
    "cluster values": CLUSTER_VALUES,
    "modules": MODULES,
    "unusual tensors": UNUSUAL_TENSORS,
    "precision keeps": PRECISION_KEEPS,
    "checkpoint traces": CHECKPOINT_TRACES,
    "cluster use": CLUSTER_USE,
    "rates and orders": RATES_AND_ORDERS,
    "checkpoint paths": CHECKPOINT_PATHS,
}


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", _GROUPS)
def test_each_mutant_is_noticed(group: str, tmp_path: Path) -> None:
    """For each mutant the one test that is run fails, and its message names what was broken."""
    _check(_GROUPS[group], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "every"), [("strategy", 30), ("precision", 4), ("checkpoint_io", 4), ("cluster_environment", 4)]
)
def test_a_draw_is_noticed(kind: str, every: int, tmp_path: Path) -> None:
    """So it is for some mutants of each kind; those of strategies each take a run of several processes."""
    mutants = [mutant for group in _GROUPS.values() for mutant in group if mutant.kind == kind]
    _check(mutants[3::every], tmp_path)


def _check(mutants: Sequence[Mutant], tmp_path: Path) -> None:
    site = tmp_path / "site"
    _install(site, mutants[0].kind)
    names = dict.fromkeys(f"{mutant.kind}:{mutant.name}" for mutant in mutants)
    backends = [argument for name in names for argument in ("--backend", name)]
    nodes = [mutant.node for mutant in mutants]
    run = run_kit(tmp_path, *backends, site=[site, SIMULATED], suite=nodes, timeout=1150)
    assert run.code == 1, run.output
    assert run.ids("failed") == {mutant.id for mutant in mutants}, run.output
    reasons = {mutant.id: (mutant.says, run.tests[mutant.id]["reason"]) for mutant in mutants}
    wrong = {name: pair for name, pair in reasons.items() if not re.search(*pair, re.DOTALL)}
    assert not wrong, "\n".join(f"{name}: {reason!r}. Expected: {says!r}" for name, (says, reason) in wrong.items())


def _install(site: Path, kind: str) -> None:
    """Install the mutants of one kind alone: a cluster environment that takes all processes for its own does."""
    names = dict.fromkeys(_names(kind), "torch_hal_mutants.plugin")
    declare(site, "torch-hal-mutants", {KINDS[kind].group: names})


def _names(kind: str) -> set[str]:
    """The names of the classes that break a rule of that kind."""
    files = (SIMULATED / "torch_hal_mutants").glob(f"{KINDS[kind].group.removeprefix('core.')}*.py")
    text = "\n".join(file.read_text("utf-8") for file in files)
    return {name.lower() for name in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE)}


def test_every_mutant_is_used() -> None:
    """Each mutant stands for one rule, and each class that breaks one is in the table."""
    mutants: list[Mutant] = [mutant for group in _GROUPS.values() for mutant in group]
    assert len({mutant.id for mutant in mutants}) == len(mutants) >= 50
    for kind in dict.fromkeys(mutant.kind for mutant in mutants):
        noticed = {mutant.name for mutant in mutants if mutant.kind == kind}
        unnoticed = _names(kind) - noticed - {"rounding"}  # which is for accelerators
        assert not unnoticed, f"{kind}: {unnoticed} in no table"


def test_the_documentation_has_each_mutant() -> None:
    """The table in docs/conformance.md is that of the mutants' declarations."""
    command = [sys.executable, "-m", "tests.write_mutants", "--check"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], check=False, timeout=120)
    assert done.returncode == 0, "docs/conformance.md is out of date. Run here: python -m tests.write_mutants"
