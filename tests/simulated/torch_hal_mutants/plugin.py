from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import attrs

from core import specs
from core.hookspecs import hookimpl
from core.kinds import KINDS


def files(kind: str) -> list[Path]:
    """Where the mutants of that kind are: ``strategies.py`` and ``strategies_of_modules.py``."""
    return sorted(Path(__file__).parent.glob(f"{KINDS[kind].group.rpartition('.')[2]}*.py"))


def classes(kind: str) -> list[tuple[str, str]]:
    """The modules and names of the public classes there, read without importing them."""
    trees = {file.stem: ast.parse(file.read_text("utf-8")) for file in files(kind)}
    return [
        (module, node.name)
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def _handed_over(kind: str, **more: Any) -> list[Any]:
    spec = getattr(specs, KINDS[kind].spec)
    return [
        spec(name=name.lower(), target=f"torch_hal_mutants.{module}:{name}", description="a mutant", **more)
        for module, name in classes(kind)
    ]


@hookimpl
def core_accelerators() -> list[specs.AcceleratorSpec]:
    return _handed_over("accelerator", detect="torch_hal_simx.detect:count")


@hookimpl
def core_strategies() -> list[specs.StrategySpec]:
    return _handed_over("strategy")


@hookimpl
def core_precisions() -> list[specs.PrecisionSpec]:
    return _handed_over("precision")


@hookimpl
def core_checkpoint_ios() -> list[specs.CheckpointIOSpec]:
    return _handed_over("checkpoint_io")


@hookimpl
def core_cluster_environments() -> list[specs.ClusterEnvironmentSpec]:
    given = _handed_over(
        "cluster_environment",
        rank="RANK",
        size="WORLD_SIZE",
        requires=("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        variables=("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    )
    return [attrs.evolve(spec, **_WRONG.get(spec.name, {})) for spec in given]


_WRONG: dict[str, dict[str, Any]] = {
    "namesnorank": {"rank": None},
    "namesthemachine": {"rank": "GROUP_RANK"},
    "sharesitslocalrank": {"variables": "GROUP_RANK"},
}
"""Fields of specs that break a rule."""
