"""The kinds of backend, and the kinds of class that a name selects: what enumerates them reads these tables.

Registries, hooks, entry-point groups, listings, ``new-plugin``, requests and Plans read :data:`KINDS`.
``python -m core.list`` imports it before anything else, so it imports nothing, not even ``typing``.
"""

from __future__ import annotations

__all__ = ["CLASS_KINDS", "COMMAND", "COMMANDS", "INTERFACE", "INTERFACES", "KINDS", "OLDEST_INTERFACE", "Kind"]

INTERFACE = 1
"""The version of the interface between core and plugins: it rises by one with a release that changes the interface."""
OLDEST_INTERFACE = 1
"""The oldest version of it that this core supports: a plugin written for that one, or a later one, works here."""
INTERFACES = "core.interface"
"""The entry-point group whose keys are the versions that a distribution was written for; without any, it is 1."""


class Kind:
    """One kind of backend."""

    __slots__ = ("base", "default", "description", "group", "name", "title", "variable")

    def __init__(
        self, name: str, *, group: str, base: str, title: str, description: str, variable: str = "", default: str = ""
    ) -> None:
        self.name = name
        """The argument of the front ends and the key in listings: ``accelerator``."""
        self.group = group
        """The entry-point group of its backends: ``core.accelerators``."""
        self.base = base
        """``module:Class``, the class from which every target of this kind derives."""
        self.title = title
        """The name in running text and, in capitals, in headings: ``accelerator``."""
        self.description = description
        """A short phrase for a backend of this kind."""
        self.variable = variable
        """The environment variable that is read if the argument is ``"auto"``; empty if there is none."""
        self.default = default
        """The backend that ``"auto"`` means; empty if resolution chooses one by its own rule."""

    @property
    def hook(self) -> str:
        """The hook that returns specs of this kind: ``core_accelerators``."""
        return self.group.replace(".", "_")

    @property
    def base_name(self) -> str:
        """The name of the base class: ``Accelerator``."""
        return self.base.partition(":")[2]

    @property
    def spec(self) -> str:
        """The class in :mod:`core.specs` that describes one backend of this kind: ``AcceleratorSpec``."""
        return f"{self.base_name}Spec"

    @property
    def registry(self) -> str:
        """The registry in :mod:`core.registration`: ``AcceleratorRegistry``."""
        return f"{self.base_name}Registry"


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "accelerator",
            group="core.accelerators",
            base="torch_hal.accelerators.base:Accelerator",
            title="accelerator",
            description="the hardware",
            variable="CORE_ACCELERATOR",
        ),
        Kind(
            "strategy",
            group="core.strategies",
            base="torch_hal.strategies.base:Strategy",
            title="strategy",
            description="how the model is spread over devices",
            variable="CORE_STRATEGY",
        ),
        Kind(
            "precision",
            group="core.precisions",
            base="torch_hal.precisions.base:Precision",
            title="precision",
            description="the dtype policy",
            variable="CORE_PRECISION",
            default="32-true",
        ),
        Kind(
            "checkpoint_io",
            group="core.checkpoint_ios",
            base="torch_hal.checkpoints.base:CheckpointIO",
            title="checkpoint IO",
            description="how checkpoints are written and read",
            default="torch",
        ),
        Kind(
            "cluster_environment",
            group="core.cluster_environments",
            base="torch_hal.environments.base:ClusterEnvironment",
            title="cluster environment",
            description="what tells each process its rank and the world size",
        ),
    )
}
"""The kinds of backends by name."""

CLASS_KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "logger",
            group="core.loggers",
            base="torch_hal.loggers.base:Logger",
            title="logger",
            description="where metrics are written",
        ),
        Kind(
            "profiler",
            group="core.profilers",
            base="torch_hal.profilers.base:Profiler",
            title="profiler",
            description="what measures a run",
        ),
    )
}
"""The kinds whose entry points name a class, ``package.module:Class``. Such a class is no backend: it has no spec, and
the Plan does not name it."""

COMMANDS = "core.commands"
"""The entry-point group of verbs of ``torch-hal``: see :mod:`core.commands.verbs`."""
COMMAND = "command"
"""The kind of their rows."""
