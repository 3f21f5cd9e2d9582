"""DistributedDataParallel with buckets that are the same at every step."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["FixedBuckets"]


class FixedBuckets(DistributedDataParallel):
    """DistributedDataParallel whose buckets begin with the last parameter's gradient, from the first step on.

    By default, DistributedDataParallel starts with one layout and changes it after the first step to the order in
    which gradients became ready. If the values of a bucket share a scale, a resumed run would then not end with the
    same bits as an uninterrupted one.

    Args:
        module: As in the base class.
        **arguments: As in the base class.
    """

    def __init__(self, module: nn.Module, **arguments: Any) -> None:
        self._is_reversed = not arguments.get("find_unused_parameters", False)  # with it, DDP never rebuilds buckets
        super().__init__(module, **arguments)
        # Rebuild once, as if gradients had become ready in the order of the parameters below.
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> Any:
        parameters, expect_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return (parameters[::-1], expect_sparse[::-1]) if self._is_reversed else (parameters, expect_sparse)
