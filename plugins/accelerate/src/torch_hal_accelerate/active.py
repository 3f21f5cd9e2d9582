"""What Accelerate runs on in this process, as activated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from torch_hal.plan import Plan
from torch_hal.strategies import Strategy

__all__ = ["Active", "active", "set_active"]


@attrs.define
class Active:
    """What Accelerate runs on in this process."""

    plan: Plan
    strategy: Strategy
    arguments: dict[str, Any]
    restore: list[Callable[[], object]] = attrs.field(factory=list)
    """Undoes what activation changed."""


_active: Active | None = None


def active() -> Active | None:
    """What was activated in this process."""
    return _active


def set_active(made: Active | None) -> None:
    """Note what was activated; ``None`` after its end."""
    global _active
    _active = made
