"""Data loaders: which part of the data each process reads, in which order, and from where on."""

from core.data.active_passes import ActivePasses
from core.data.batches import drop_padding
from core.data.combined import CombinedLoader, PreparedCombined, is_collection
from core.data.loader import PreparedLoader
from core.data.loader_parts import loader_parts, set_epoch
from core.data.prepare import prepare_loader
from core.data.reading import in_order
from core.data.settings import DataSettings
from core.data.skipping import skip_first_batches

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
