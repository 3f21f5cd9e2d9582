"""Importing it registers ``hccl`` with ``torch.distributed``."""

from __future__ import annotations

from habana_frameworks.torch import core

__all__ = ["core"]
