"""Passes over a loader that begin after its first batches."""

from __future__ import annotations

import copy
from typing import Any

from ..errors import ConfigurationError
from .loader import PreparedLoader
from .reading import make_reading
from .shard_share import Share

__all__ = ["skip_first_batches"]


def skip_first_batches(loader: Any, num_batches: int = 0) -> PreparedLoader:
    """A loader of the batches of ``loader`` from number ``num_batches`` on, in each pass.

    Map-style data is skipped by index, and not loaded. A pass over it is one over ``loader``: the next pass over either
    is the next epoch. Where a position was loaded, the later of the two counts. One after the last batch of an epoch,
    of which ``num_batches`` would leave some, is the start of the next epoch.

    Args:
        loader: Prepared or not.
        num_batches: How many batches are left out.

    Raises:
        ConfigurationError: ``num_batches`` is not an integer ≥ 0.
    """
    if isinstance(num_batches, bool) or not isinstance(num_batches, int) or num_batches < 0:
        raise ConfigurationError(f"num_batches={num_batches!r}: must be an integer ≥ 0.")
    prepared = loader if isinstance(loader, PreparedLoader) else PreparedLoader(make_reading(loader, Share()), Share())
    if num_batches < prepared.batches_taken:
        prepared.leave_ended_pass()
    skipping = copy.copy(prepared)
    skipping._skip = num_batches
    return skipping
