"""Precision: the dtype policies."""

from core.precisions.base import Precision
from core.precisions.double import DoublePrecision
from core.precisions.full import FullPrecision
from core.precisions.half import HalfPrecision
from core.precisions.mixed import MixedPrecision

__all__ = ["DoublePrecision", "FullPrecision", "HalfPrecision", "MixedPrecision", "Precision"]
