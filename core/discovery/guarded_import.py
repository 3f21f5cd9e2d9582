"""Importing a plugin's module in this process, and refusing it if that changes the process's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BackendError
from ..specs import BackendSpec
from .activation import Activation, activate
from .import_side_effects import ProcessState
from .loading import load, target_name

__all__ = ["activate_watched", "load_watched"]

_refused: dict[str, str] = {}
"""By target or module, why it was refused: a module runs once in a process, and is refused each time after that."""


def load_watched(spec: BackendSpec, origin: str) -> type[Any]:
    """Like :func:`core.discovery.loading.load`, and refuses a target whose import changes this process.

    Raises:
        BackendError: See there; or the import changes the process, which is undone where it can be.
    """
    target = target_name(spec.target)
    state = ProcessState()
    try:
        return load(spec, origin)
    finally:
        _refuse(target, state, f"{spec.kind} {spec.name!r} of {origin}")


def activate_watched(module: str, declared: Mapping[str, set[str]]) -> Activation:
    """Like :func:`core.discovery.activation.activate`, and refuses a module whose import changes this process.

    Raises:
        BackendError: The import changes the process, which is undone where it can be.
    """
    state = ProcessState()
    try:
        return activate(module, declared)
    finally:
        _refuse(module, state, f"plugin module {module!r}")


def _refuse(target: str, state: ProcessState, subject: str) -> None:
    if changes := state.take_changes():
        _refused[target] = changes
    if target in _refused:
        raise BackendError(
            f"{subject} is refused, because its import changes this process: {_refused[target]}. Import what does this "
            "where it is used, or uninstall the plugin."
        )
