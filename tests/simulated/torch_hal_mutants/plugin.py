from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from core import specs
from core.hookspecs import hookimpl
from core.kinds import KINDS


def module(kind: str) -> str:
    """Where the mutants of that kind are: ``strategies``."""
    return KINDS[kind].group.rpartition(".")[2]


def classes(kind: str) -> list[str]:
    """The public classes there, if any, read without importing them."""
    file = Path(__file__).with_name(f"{module(kind)}.py")
    tree = ast.parse(file.read_text("utf-8")) if file.exists() else ast.Module([], [])
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def _handed_over(kind: str, **more: Any) -> list[Any]:
    spec = getattr(specs, KINDS[kind].spec)
    return [
        spec(name=name.lower(), target=f"torch_hal_mutants.{module(kind)}:{name}", description="a mutant", **more)
        for name in classes(kind)
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
    return _handed_over("cluster_environment")
