"""``gather_for_metrics``: predictions and targets of all processes, without the items that pad the last batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data.shards import Real as RealItems
from ..errors import ConfigurationError
from ..logging import get_logger
from ..utilities.nested import leaves, map_tensors
from .checks import check_leaves
from .collectives import Collectives, pad_to, sizes_along
from .gradient_state import GradientState
from .lifecycle import Life
from .process_control import PADDING, Agreement, describe_leaves, is_tensor_row, refuse_difference

logger = get_logger(__name__)

CALL = "gather_for_metrics"


class MetricGathering:
    """Gathers predictions and targets, and drops the items that pad the last batch.

    Args:
        life: Of the run.
        agreement: Compares what the processes are about to do.
        collectives: Exchange values between processes.
        gradient_state: What of the newest batch is padding.
    """

    def __init__(
        self, life: Life, agreement: Agreement, collectives: Collectives, gradient_state: GradientState
    ) -> None:
        self._life, self._agreement, self._collectives = life, agreement, collectives
        self._gradient_state = gradient_state
        self._ranks_of_shards: list[int] | None = None

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool) -> Any:
        """See :meth:`core.Runtime.gather_for_metrics`."""
        strategy = self._life.live()
        self._refuse_absent()
        real = self._gradient_state.real_samples
        padding = (PADDING, str(real))
        if use_gather_object:
            self._agreement.agree(CALL, [padding])
            return self._gather_listed(input_data, real)
        rows = describe_leaves(input_data, "input_data", int(real is not None))
        given = self._agreement.compare(CALL, [padding, *rows])
        if not all(is_tensor_row(row) for part in ([rows] if given is None else given) for row in part):
            if given is not None:
                self._agreement.agree(CALL, [padding])
            # A tuple with tensors next to objects is not a list of the batch's items.
            has_tensors = any(isinstance(leaf, Tensor) for _, leaf in leaves(input_data))
            return self._gather_listed(input_data, real, (list,) if has_tensors else (list, tuple))
        refuse_difference(given)
        check_leaves(CALL, "input_data", input_data)
        ranks = self._ranks()
        if real is not None:
            self._warn_of_padded_mean(input_data, real)
        sizes = iter([] if real is None else sizes_along(strategy, input_data, 0))

        def gather(own: Tensor) -> Tensor:
            parts = own.detach() if own.dim() else own.detach().unsqueeze(0)
            if real is None:
                return strategy.all_gather(parts)[ranks].flatten(0, 1)
            counts = next(sizes) if own.dim() else [1] * strategy.world_size
            joined = strategy.all_gather(pad_to(parts, 0, max(counts)))
            kept = zip(ranks, real, strict=True)
            return torch.cat([joined[rank, : counts[rank]][:count] for rank, count in kept])

        with strategy.assume_alike():
            return map_tensors(gather, input_data)

    def _warn_of_padded_mean(self, input_data: Any, real: RealItems) -> None:
        """Warn of one value for a batch of which some items are padding: nothing can leave these out of it."""
        loader = self._gradient_state.active_dataloader
        is_padded = any(0 < (count or 0) < max(count or 0 for count in real) for count in real)
        if loader is None or not loader.even_batches or not is_padded:
            return
        for place, leaf in leaves(input_data, "input_data"):
            if isinstance(leaf, Tensor) and (not leaf.dim() or len(leaf) == 1 < (real[0] or 0)):
                logger.warning_once(
                    "%s: %s is one value for a batch that has padding, so the items that pad it count in that value. "
                    "Give one value for each item, as by reduction='none'",
                    CALL,
                    place,
                )

    def _refuse_absent(self) -> None:
        """Refuse a batch that some processes do not have: the collective would wait for them."""
        absent = self._agreement.absent()
        if absent:
            raise ConfigurationError(
                f"{CALL}: {absent} have no batch left, because of even_batches=False, and so do not call it. Leave "
                f"even_batches=False out: then each process has the same number of batches, and {CALL} drops what pads "
                "the last one. Or collect results in the loop, and call gather_object after it."
            )

    def _gather_listed(self, own: Any, real: RealItems | None, types: tuple[type, ...] = (list, tuple)) -> list[Any]:
        """The lists of all processes, joined without padding."""
        lists = self._collectives.gather_lists(CALL, "input_data", own, types)
        ranks = self._ranks()
        counts = [None] * len(ranks) if real is None else real
        return [item for rank, count in zip(ranks, counts, strict=True) for item in lists[rank][:count]]

    def _ranks(self) -> list[int]:
        """For each part of the data, the first process that reads it."""
        if self._ranks_of_shards is None:
            strategy = self._life.live()
            self._ranks_of_shards = strategy.gather_shards(strategy.global_rank)
        return self._ranks_of_shards
