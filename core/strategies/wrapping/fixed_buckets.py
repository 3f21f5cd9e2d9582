"""DistributedDataParallel whose groups of gradients are the same at every step, so that resuming is exact."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["FixedBuckets", "wrap"]


class FixedBuckets(DistributedDataParallel):
    """DistributedDataParallel whose buckets begin with the last parameter's gradient, from the first step on.

    By default, DistributedDataParallel starts with one layout and changes it after the first step to the order in
    which gradients became ready. Sums over three or more processes, and communication hooks, depend on where in a
    bucket a gradient is, so the first step of a resumed run would differ in the last bits.

    Args:
        module: As in the base class.
        **arguments: As in the base class.
    """

    def __init__(self, module: nn.Module, **arguments: Any) -> None:
        super().__init__(module, **arguments)
        # Private methods of torch's: there are no public ones that decide the layout. They run no backward pass, and so
        # touch no gradient, hook, buffer or random number. tests/strategies/test_buckets.py fails if they change.
        if hasattr(self, "reducer"):  # it is absent if delay_all_reduce_named_params has all parameters
            self.reducer._push_all_rebuilt_params()
            self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> Any:
        # The layout follows this list. Gradients become ready from the last parameter to the first.
        parameters, expect_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], expect_sparse[::-1]


def wrap(module: nn.Module, *, fixed: bool, **arguments: Any) -> DistributedDataParallel:
    """``module`` in DistributedDataParallel, with ``arguments``.

    Args:
        module: What is wrapped.
        fixed: Whether sums depend on the layout of the buckets. Then it is the same at every step.
        **arguments: Those of DistributedDataParallel.
    """
    changes = arguments.get("static_graph", False) or not arguments.get("find_unused_parameters", False)
    return (FixedBuckets if fixed and changes else DistributedDataParallel)(module, **arguments)
