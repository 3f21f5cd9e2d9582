"""Precision: the dtype policies."""

from core.precisions.base import Precision
from core.precisions.mixed import MixedPrecision
from core.precisions.single_dtype import DoublePrecision, FullPrecision, HalfPrecision
from core.utilities.lazy import lazy_names

__all__ = ["DoublePrecision", "FullPrecision", "HalfPrecision", "MixedPrecision", "Precision"]

__getattr__, __dir__ = lazy_names(__name__, {})
