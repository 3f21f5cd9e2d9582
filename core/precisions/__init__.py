"""Precision: the dtype policies."""

from ..utilities.lazy import lazy_names
from .base import Precision
from .mixed import MixedPrecision
from .single_dtype import DoublePrecision, FullPrecision, HalfPrecision

__all__ = ["DoublePrecision", "FullPrecision", "HalfPrecision", "MixedPrecision", "Precision"]

__getattr__, __dir__ = lazy_names(__name__, {})
