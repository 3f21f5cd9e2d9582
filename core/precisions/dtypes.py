"""Shared by the precisions: default dtypes, conversion of nested structures, and checks of a device's dtypes."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from ..errors import BackendError, ConfigurationError, WrongTypeError, quoted
from ..utilities.nested import map_tensors

__all__ = ["DefaultDtype", "half_dtype", "require_dtype", "to_floating", "widen"]

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class DefaultDtype:
    """A context in which ``dtype`` is torch's default dtype; the previous default is restored at the end."""

    __slots__ = ("_before", "_dtype")

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_default_dtype(self._before)


def half_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The 16-bit dtype that ``dtype`` names.

    Raises:
        ConfigurationError: ``dtype`` is not float16 or bfloat16.
        WrongTypeError: ``dtype`` is neither a string nor a dtype.
    """
    if not isinstance(dtype, str | torch.dtype):
        raise WrongTypeError(f"dtype={dtype!r} must be a torch.dtype or its name, not {type(dtype).__name__}.")
    found = _HALVES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in _HALVES.values():
        raise ConfigurationError(
            f"dtype={dtype!r} is not a 16-bit dtype. Valid: {quoted(_HALVES)}, or the torch.dtype."
        )
    return found


def to_floating(data: Any, dtype: torch.dtype) -> Any:
    """``data``, any nested structure, with all floating point tensors in ``dtype``."""
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, data)


def widen(data: Any, narrow: torch.dtype, wide: torch.dtype) -> Any:
    """``data``, any nested structure, with tensors of dtype ``narrow`` in ``wide``, and all others as they are."""
    return map_tensors(lambda tensor: tensor.to(wide) if tensor.dtype is narrow else tensor, data)


def require_dtype(precision: str, dtype: torch.dtype, device_type: str) -> None:
    """Check that a device of this type supports tensors of ``dtype``.

    Raises:
        BackendError: It does not.
    """
    try:
        torch.empty(1, dtype=dtype, device=device_type)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise BackendError(
            f"precision={precision!r}: device type {device_type!r} does not support {dtype}: {error} Choose a "
            f"precision whose dtype the device supports, such as precision='32-true'."
        ) from error
