"""The hooks that return a plugin's backends: one per kind, named after its entry-point group.

``core_accelerators``, ``core_strategies``, ``core_precisions``, ``core_checkpoint_ios`` and
``core_cluster_environments`` take no arguments and return a list of specs. A plugin declares one entry point per
backend, with the backend's name as the key, in the group of its kind (``core.accelerators``, ``core.strategies``, …).
All of them point to one module, which imports no torch and implements the hooks that it needs::

    from core.hookspecs import hookimpl
    from core.specs import AcceleratorSpec

    @hookimpl
    def core_accelerators():
        return [AcceleratorSpec(name="acme", target="torch_hal_acme.accelerator:AcmeAccelerator")]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

from core.kinds import KINDS, Kind

__all__ = ["hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("core")
"""Marks core's declarations of the hooks. Plugins do not need it."""

hookimpl = pluggy.HookimplMarker("core")
"""The decorator for a plugin's implementation of a hook."""


def _hook(kind: Kind) -> Callable[[], Any]:
    def hook() -> Any:
        raise NotImplementedError

    hook.__name__ = hook.__qualname__ = kind.hook
    hook.__doc__ = f"Return the {kind.spec} of each {kind.title} that this plugin provides: {kind.description}."
    return hookspec(hook)


globals().update({kind.hook: _hook(kind) for kind in KINDS.values()})
