"""Importing Horovod."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

from torch_hal.errors import BackendError

__all__ = ["import_horovod"]


def import_horovod() -> Any:
    """``horovod.torch``.

    Raises:
        BackendError: Horovod is not installed, or not built for this torch.
    """
    loaded = sys.modules.get("horovod.torch")
    if loaded is not None:
        return loaded
    try:
        with warnings.catch_warnings():
            # Its imports cause deprecation warnings of setuptools and torch.
            warnings.simplefilter("ignore")
            return importlib.import_module("horovod.torch")
    except (ImportError, OSError, AttributeError) as error:
        raise BackendError(
            f"strategy='horovod': Horovod cannot be imported: {type(error).__name__}: {error}. Build Horovod for this "
            'Python and this torch; see "Building Horovod" in the README of torch-hal-horovod.'
        ) from error
