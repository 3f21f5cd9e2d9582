"""Registering kernels with torch's dispatcher."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["library"]

_kept: list[Any] = []
"""A registration lasts as long as its library object."""


def library(namespace: str, dispatch_key: str) -> Any:
    """A library whose registrations last as long as the process."""
    made: Any = torch.library.Library(namespace, "IMPL", dispatch_key)  # type: ignore[no-untyped-call]
    _kept.append(made)
    return made
