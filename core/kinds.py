"""The five kinds of backend: the one table that discovery, the registry and the listing share.

``python -m core.list`` reads it before anything else: it imports nothing, not even ``typing``.
"""

from __future__ import annotations

__all__ = ["KINDS", "Kind"]


class Kind:
    """One kind of backend."""

    __slots__ = ("base", "group", "name", "spec")

    def __init__(self, name: str, group: str, spec: str, base: str) -> None:
        self.name = name
        """How arguments and listings call it: ``accelerator``."""
        self.group = group
        """The entry-point group of its backends: ``core.accelerators``. The hook is the same with an underscore."""
        self.spec = spec
        """The class in :mod:`core.specs` that describes one backend of this kind."""
        self.base = base
        """``module:Class`` that a backend's target must derive from."""

    @property
    def hook(self) -> str:
        """The hook in :mod:`core.hookspecs` that yields specs of this kind."""
        return self.group.replace(".", "_")


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("accelerator", "core.accelerators", "AcceleratorSpec", "core.accelerators.base:Accelerator"),
        Kind("strategy", "core.strategies", "StrategySpec", "core.strategies.base:Strategy"),
        Kind("precision", "core.precisions", "PrecisionSpec", "core.precisions.base:Precision"),
        Kind("checkpoint_io", "core.checkpoint_ios", "CheckpointIOSpec", "core.checkpoints.base:CheckpointIO"),
        Kind(
            "cluster_environment",
            "core.cluster_environments",
            "ClusterEnvironmentSpec",
            "core.environments.base:ClusterEnvironment",
        ),
    )
}
