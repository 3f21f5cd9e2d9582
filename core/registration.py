"""Registering backends in code, for this process only: no package, no entry point.

::

    from core import AcceleratorRegistry

    AcceleratorRegistry.register("xpu", XPUAccelerator, description="the simulated XPU")

Every front end created afterwards in this process finds the backend by this name. There is one registry for each kind
of backend: :data:`REGISTRIES` by kind, and ``AcceleratorRegistry``, ``StrategyRegistry``, … by name.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

from .errors import ConfigurationError, UnknownNameError, WrongTypeError, nearest, quoted
from .kinds import KINDS

__all__ = [
    "REGISTRIES",
    "AcceleratorRegistry",
    "CheckpointIORegistry",
    "ClusterEnvironmentRegistry",
    "CodeRegistry",
    "PrecisionRegistry",
    "StrategyRegistry",
]


class CodeRegistry:
    """The in-process registrations of one kind of backend.

    Args:
        kind: A key of :data:`core.kinds.KINDS`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = KINDS[kind].name
        self._specs: dict[str, Any] = {}
        self._overriding: set[str] = set()

    def register(
        self,
        name: str,
        target: Any,
        *,
        description: str = "",
        aliases: tuple[str, ...] = (),
        priority: int = 50,
        override: bool = False,
        **init_args: Any,
    ) -> Any:
        """Register ``target`` under ``name``.

        Args:
            name: The backend's name.
            target: The class, or ``"module:Class"``.
            description: One sentence for listings.
            aliases: Further names for it.
            priority: Order among candidates for ``"auto"`` and for shared aliases; the highest is tried first.
            override: Replace a class that was registered under this name before, and use this one where an installed
                plugin provides the name too. Without it, selecting the name then raises an error. Core's own backends
                cannot be replaced.
            **init_args: Keyword arguments that ``target`` is called with.

        Returns:
            ``target``.

        Raises:
            ConfigurationError: Another class is registered under ``name`` and ``override`` is false, or an argument is
                not valid in a spec.
            WrongTypeError: ``target`` is neither a subclass of the kind's base class nor a ``"module:Class"`` string.
        """
        from . import specs

        self._check_target(name, target)
        held = self._specs.get(name)
        if held is not None and not override and _identity(held.target) != _identity(target):
            raise ConfigurationError(
                f"name={name!r}: {KINDS[self.kind].registry} already has {_identity(held.target)} under this name, "
                f"given {_identity(target)}. Choose another name, or set override=True to replace it."
            )
        try:
            self._specs[name] = getattr(specs, KINDS[self.kind].spec)(
                name=name,
                target=target,
                description=description,
                aliases=aliases,
                priority=priority,
                init_args=init_args,
            )
        except (ValueError, TypeError) as error:
            raise ConfigurationError(str(error)) from error
        (self._overriding.add if override else self._overriding.discard)(name)
        return target

    def _check_target(self, name: str, target: Any) -> None:
        if isinstance(target, str):
            return
        module, _, attribute = KINDS[self.kind].base.partition(":")
        if not isinstance(target, type) or not issubclass(target, getattr(importlib.import_module(module), attribute)):
            raise WrongTypeError(
                f"target={target!r} of {KINDS[self.kind].title} {name!r} is not a subclass of core.{attribute}. Give "
                "such a class, or a string 'module:Class'."
            )

    def remove(self, name: str) -> None:
        """Remove ``name`` from the registry.

        Raises:
            UnknownNameError: ``name`` is not registered.
        """
        if name not in self._specs:
            raise UnknownNameError(
                f"name={name!r} is not in {KINDS[self.kind].registry}.{nearest(name, self._specs)} "
                f"Registered: {quoted(sorted(self._specs), near=name)}."
            )
        del self._specs[name]
        self._overriding.discard(name)

    def specs(self) -> dict[str, Any]:
        """The specs registered so far, by name."""
        return dict(self._specs)

    def __getitem__(self, name: str) -> dict[str, Any]:
        """What is known of a backend, installed or registered: its class under the kind, description, ``init_params``.

        Raises:
            CoreError: No backend has this name, or it cannot be used.
        """
        registry = self._all()
        spec = registry.complete(registry.find(self.kind, name)[0])
        return {self.kind: registry.load(spec), "description": spec.description, "init_params": dict(spec.init_args)}

    def get(self, name: str, default: Any = None) -> Any:
        """An object of the backend's class, made with its ``init_params``.

        Args:
            name: The backend's name.
            default: What is returned if no backend has the name; ``None`` for an error.

        Raises:
            CoreError: As for ``registry[name]``.
        """
        try:
            found = self[name]
        except UnknownNameError:
            if default is None:
                raise
            return default
        return found[self.kind](**found["init_params"])

    def available(self) -> list[str]:
        """The names of all backends of this kind, installed and registered."""
        names: list[str] = self._all().names(self.kind)
        return names

    def _all(self) -> Any:
        # It reads these registries, and so is above them: nothing of it is imported unless it is asked for.
        return importlib.import_module(".discovery.registry", __package__).Registry.read(os.environ)

    @property
    def overriding(self) -> frozenset[str]:
        """Names under which a registered class is used in place of an installed plugin's."""
        return frozenset(self._overriding & self._specs.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._specs))

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"<{KINDS[self.kind].registry}: {quoted(self)}>"


def _identity(target: Any) -> str:
    # Compared by name, so that running a notebook cell again replaces the class it defined before.
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


class _Accelerators(CodeRegistry):
    available_accelerators = CodeRegistry.available


class _Strategies(CodeRegistry):
    available_strategies = CodeRegistry.available


AcceleratorRegistry = _Accelerators("accelerator")
"""The accelerators that are registered in code."""
StrategyRegistry = _Strategies("strategy")
"""The strategies that are registered in code."""
PrecisionRegistry = CodeRegistry("precision")
"""The precisions that are registered in code."""
CheckpointIORegistry = CodeRegistry("checkpoint_io")
"""The checkpoint IOs that are registered in code."""
ClusterEnvironmentRegistry = CodeRegistry("cluster_environment")
"""The cluster environments that are registered in code."""

REGISTRIES: dict[str, CodeRegistry] = {
    registry.kind: registry
    for registry in (
        AcceleratorRegistry,
        StrategyRegistry,
        PrecisionRegistry,
        CheckpointIORegistry,
        ClusterEnvironmentRegistry,
    )
}
"""The registry of each kind, by the key in :data:`core.kinds.KINDS`."""
