"""How many cards are there: torch-free."""

from __future__ import annotations

from acme_driver import count

__all__ = ["count"]
