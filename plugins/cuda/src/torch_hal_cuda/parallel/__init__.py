"""Running one module on several devices at once, in one process, on any type of device."""

from __future__ import annotations

from torch_hal_cuda.parallel.module import DataParallel

__all__ = ["DataParallel"]
