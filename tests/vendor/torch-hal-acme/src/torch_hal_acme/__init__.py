"""Acme's cards in torch-hal. Importing this package imports no torch."""

from __future__ import annotations

__all__: list[str] = []
