"""Runs one module on several devices at once in one process, on any device type."""

from __future__ import annotations

from torch_hal_cuda.parallel.module import DataParallel

__all__ = ["DataParallel"]
