"""Data loaders: which part of the data each process reads, in which order, and from where on."""

from .active_passes import ActivePasses
from .batches import drop_padding
from .combined import CombinedLoader, PreparedCombined, is_collection
from .loader import PreparedLoader
from .loader_structure import loader_parts, set_epoch
from .prepare import DataSettings, prepare_loader, skip_first_batches
from .reading import in_order

__all__ = [
    "ActivePasses",
    "CombinedLoader",
    "DataSettings",
    "PreparedCombined",
    "PreparedLoader",
    "drop_padding",
    "in_order",
    "is_collection",
    "loader_parts",
    "prepare_loader",
    "set_epoch",
    "skip_first_batches",
]
