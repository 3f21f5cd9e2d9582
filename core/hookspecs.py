"""The contract between core and a plugin: five hooks, one for each kind of backend.

A plugin implements the hooks that it needs, in one module that imports no torch. Each hook takes no arguments and
returns a list of specs (:mod:`core.specs`), one for each backend. ``pyproject.toml`` declares an entry point for each
backend: the group is that of its kind, the key is the backend's name, and the value is the module with the hooks. Core
lists the names without importing the module, and calls the hooks when one of the names is used::

    # pyproject.toml
    [project.entry-points."core.accelerators"]
    acme = "torch_hal_acme.plugin"

    # torch_hal_acme/plugin.py
    from core.hookspecs import hookimpl
    from core.specs import AcceleratorSpec

    @hookimpl
    def core_accelerators():
        return [AcceleratorSpec(name="acme", target="torch_hal_acme.accelerator:AcmeAccelerator")]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .specs import AcceleratorSpec, CheckpointIOSpec, ClusterEnvironmentSpec, PrecisionSpec, StrategySpec

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
"""The decorator of the hooks in this module. Plugins do not need it."""

hookimpl = pluggy.HookimplMarker("core")
"""The decorator of a plugin's implementation of a hook."""


@hookspec
def core_accelerators() -> Sequence[AcceleratorSpec]:
    """Return the plugin's accelerators: hardware, how to find it, pick devices and set them up.

    Entry-point group ``core.accelerators``. ``target`` is a subclass of :class:`core.Accelerator`; ``detect`` counts
    the devices without torch.
    """
    raise NotImplementedError


@hookspec
def core_strategies() -> Sequence[StrategySpec]:
    """Return the plugin's strategies: how a model is spread over devices and kept in step.

    Entry-point group ``core.strategies``. ``target`` is a subclass of :class:`core.Strategy`; with ``init_args`` one
    class serves several names.
    """
    raise NotImplementedError


@hookspec
def core_precisions() -> Sequence[PrecisionSpec]:
    """Return the plugin's precisions: the dtypes of parameters and computation, and whether the loss is scaled.

    Entry-point group ``core.precisions``. ``target`` is a subclass of :class:`core.Precision`.
    """
    raise NotImplementedError


@hookspec
def core_checkpoint_ios() -> Sequence[CheckpointIOSpec]:
    """Return the plugin's checkpoint IOs: how checkpoints are written, read and removed.

    Entry-point group ``core.checkpoint_ios``. ``target`` is a subclass of :class:`core.CheckpointIO`.
    """
    raise NotImplementedError


@hookspec
def core_cluster_environments() -> Sequence[ClusterEnvironmentSpec]:
    """Return the plugin's cluster environments: what tells each process its rank, the world size and the main address.

    Entry-point group ``core.cluster_environments``. ``target`` is a subclass of :class:`core.ClusterEnvironment`;
    ``detect`` says from the environment variables, without torch, whether the cluster started this process.
    """
    raise NotImplementedError
