"""The five hooks through which a plugin hands over its backends.

A plugin's entry points (groups ``core.accelerators``, ``core.strategies``, ``core.precisions``,
``core.checkpoint_ios``, ``core.cluster_environments``; one key for each backend's name) all point to one light module.
That module imports no torch and implements the hooks it needs::

    from core.hookspecs import hookimpl
    from core.specs import AcceleratorSpec

    @hookimpl
    def core_accelerators():
        return [AcceleratorSpec(name="acme", target="torch_hal_acme.accelerator:AcmeAccelerator")]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from core.specs import AcceleratorSpec, CheckpointIOSpec, ClusterEnvironmentSpec, PrecisionSpec, StrategySpec

__all__ = [
    "core_accelerators",
    "core_checkpoint_ios",
    "core_cluster_environments",
    "core_precisions",
    "core_strategies",
    "hookimpl",
    "hookspec",
]

hookspec = pluggy.HookspecMarker("core")
hookimpl = pluggy.HookimplMarker("core")


@hookspec
def core_accelerators() -> Iterable[AcceleratorSpec]:  # type: ignore[empty-body]
    """The accelerators this plugin provides: kinds of hardware."""


@hookspec
def core_strategies() -> Iterable[StrategySpec]:  # type: ignore[empty-body]
    """The strategies this plugin provides: ways of spreading a model over devices."""


@hookspec
def core_precisions() -> Iterable[PrecisionSpec]:  # type: ignore[empty-body]
    """The precisions this plugin provides: dtype policies."""


@hookspec
def core_checkpoint_ios() -> Iterable[CheckpointIOSpec]:  # type: ignore[empty-body]
    """The checkpoint IOs this plugin provides: ways of writing and reading a checkpoint's bytes."""


@hookspec
def core_cluster_environments() -> Iterable[ClusterEnvironmentSpec]:  # type: ignore[empty-body]
    """The cluster environments this plugin provides: ways of knowing who this process is among the others."""
