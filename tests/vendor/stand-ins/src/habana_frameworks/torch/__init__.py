"""A stand-in for Gaudi's bridge to torch: importing it gives torch the type ``hpu``."""

from __future__ import annotations

from habana_frameworks.torch import core, hpu

__all__ = ["core", "hpu"]
