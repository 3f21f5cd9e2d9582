"""Precision: the dtype policies."""

from core.precisions.base import Precision
from core.precisions.mixed import MixedPrecision
from core.precisions.single_dtype import DoublePrecision, FullPrecision, HalfPrecision

__all__ = ["DoublePrecision", "FullPrecision", "HalfPrecision", "MixedPrecision", "Precision"]
