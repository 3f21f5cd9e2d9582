"""Registering backends in code, for this process only: no package, no entry point.

::

    from core import AcceleratorRegistry

    AcceleratorRegistry.register("xpu", XPUAccelerator, description="the simulated XPU")

What is registered here is known by name to every front end created afterwards in this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from core.errors import ConfigurationError, UnknownNameError, WrongTypeError, nearest, quoted
from core.kinds import KINDS

__all__ = [
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
        """Make ``target`` known as ``name``.

        Args:
            name: The word it is asked for by.
            target: The class, or ``"module:Class"``.
            description: One sentence for listings.
            aliases: Further words for it.
            priority: Order among candidates for ``auto`` and shared aliases; higher goes first.
            override: Replace another class registered under this name before. One of an installed plugin stays: asking
                for the name is then refused.
            **init_args: Keyword arguments that ``target`` is called with.

        Returns:
            ``target``.

        Raises:
            ConfigurationError: Another class holds the name, and ``override`` is false; or an argument is none that a
                spec takes.
            WrongTypeError: ``target`` is neither a class of this kind nor a ``"module:Class"`` string.
        """
        from core import specs

        self._check_target(name, target)
        held = self._specs.get(name)
        if held is not None and not override and _identity(held.target) != _identity(target):
            raise ConfigurationError(
                f"name={name!r}: the {self.kind} registry holds {_identity(held.target)} under this name, given "
                f"{_identity(target)}. Valid: another name, or override=True."
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
        return target

    def _check_target(self, name: str, target: Any) -> None:
        if isinstance(target, str):
            return
        module, _, attribute = KINDS[self.kind].base.partition(":")
        if not isinstance(target, type) or not issubclass(target, getattr(importlib.import_module(module), attribute)):
            raise WrongTypeError(
                f"target={target!r} for {self.kind} {name!r}: expected a class derived from core.{attribute}, or "
                "'module:Class'."
            )

    def remove(self, name: str) -> None:
        """Forget ``name``.

        Raises:
            UnknownNameError: It was never registered.
        """
        if name not in self._specs:
            raise UnknownNameError(
                f"name={name!r}: not in the {self.kind} registry. Valid: {quoted(sorted(self._specs))}."
                + nearest(name, self._specs)
            )
        del self._specs[name]

    def specs(self) -> dict[str, Any]:
        """The specs registered so far, by name."""
        return dict(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._specs))

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"<{self.kind} registry: {quoted(self)}>"


def _identity(target: Any) -> str:
    # By name, so that running a notebook cell twice replaces a class by its newer self.
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


AcceleratorRegistry = CodeRegistry("accelerator")
StrategyRegistry = CodeRegistry("strategy")
PrecisionRegistry = CodeRegistry("precision")
CheckpointIORegistry = CodeRegistry("checkpoint_io")
ClusterEnvironmentRegistry = CodeRegistry("cluster_environment")
