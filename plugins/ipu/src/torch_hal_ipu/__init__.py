"""Graphcore IPUs in torch-hal. Importing this package imports neither torch nor poptorch."""

from __future__ import annotations

__all__: list[str] = []
