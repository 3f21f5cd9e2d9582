"""DistributedDataParallel with buckets that are the same at every step."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["FixedBuckets"]


class FixedBuckets(DistributedDataParallel):
    """Gradients lie in the buckets the last parameter's first, from the first step on.

    By itself DistributedDataParallel begins with one layout, and after the first step takes another, in the order in
    which gradients came. Where numbers in a bucket share a scale, a run that goes on from a checkpoint would then not
    come to the same bits as one that was never interrupted.

    Args:
        module: As in the base class.
        **arguments: As there.
    """

    def __init__(self, module: nn.Module, **arguments: Any) -> None:
        self._is_reversed = not arguments.get("find_unused_parameters", False)  # with it, buckets stay as they are
        super().__init__(module, **arguments)
        # As if gradients had come in the order of the parameters below, once and for all.
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> Any:
        parameters, expect_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return (parameters[::-1], expect_sparse[::-1]) if self._is_reversed else (parameters, expect_sparse)
