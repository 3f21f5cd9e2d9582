"""Precision: the dtype policies."""

from ..utilities.lazy import lazy_names
from .base import Precision
from .dtypes import Parts, find_parts, read_parts
from .mixed import MixedPrecision
from .single_dtype import DoublePrecision, FullPrecision, HalfPrecision, wide_copies

__all__ = [
    "DoublePrecision",
    "FullPrecision",
    "HalfPrecision",
    "MixedPrecision",
    "Parts",
    "Precision",
    "find_parts",
    "read_parts",
    "wide_copies",
]

__getattr__, __dir__ = lazy_names(__name__, {})
