"""Importing torchao, which takes a second: only when a precision of this package is used."""

from __future__ import annotations

import logging
from typing import Any

from torch_hal.errors import BackendError

__all__ = ["load"]


def load(precision: str) -> Any:
    """The package ``torchao`` with ``torchao.float8``, ``torchao.quantization`` and its ``qat``.

    Raises:
        BackendError: It cannot be imported.
    """
    builds = logging.getLogger("torchao")
    level = builds.level
    builds.setLevel(logging.ERROR)  # where there is no CUDA, it warns about its own libraries for CUDA
    try:
        import torchao
        import torchao.float8
        import torchao.quantization.qat
    except ImportError as error:
        raise BackendError(
            f"precision={precision!r}: torchao cannot be imported: {error}. Run: pip install torchao"
        ) from error
    finally:
        builds.setLevel(level)
    return torchao
