"""What was computed of the newest batch, of all processes, without padding."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...data.sharding import Real
from ...errors import ConfigurationError
from ...logging import get_logger
from ...plan import Plan
from ...utilities.nested import leaves, map_tensors
from ..arguments import check_leaves
from ..gradient_state import LoaderState
from .collectives import Collectives, pad_to, sizes_along
from .comparison import PADDING, Row, describe_leaves, is_tensor_row, refuse_difference

__all__ = ["MetricGathering"]

logger = logging.getLogger(__name__)
padded = get_logger(__name__)
"""What every process would say alike."""

CALL = "gather_for_metrics"


class MetricGathering(Collectives, LoaderState):
    """The part of :class:`core.Runtime` that gathers predictions and targets."""

    def _connect(self, plan: Plan) -> None:
        super()._connect(plan)
        self._ranks_of_shards: list[int] | None = None
        self._warns_of_absent = True

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """:meth:`gather` what was computed of the newest batch, each item of the data set once, in the data's order.

        Items that pad an incomplete global batch are left out: of each process's part the items after those that
        :attr:`core.data.PreparedLoader.real_samples` of the active loader counts. Outside of all loops over prepared
        loaders nothing is left out. Of processes that read the same part of the data, one counts.

        Args:
            input_data: A tensor, or a nested structure of tensors and ``None``, with one row for each item of the
                batch; of a scalar, such as a loss, the result has one element for each process with real items. Or a
                list with one picklable object for each item.
            use_gather_object: Whether to send a list of tensors as a list of objects, so that their shapes may differ.

        Returns:
            The structure with the joined tensors, or the joined list.

        Raises:
            ConfigurationError: Structures, dtypes or shapes differ between processes, other than in the number of rows
                of an incomplete batch; the processes' loaders are at different batches; or with ``even_batches=False``
                some processes have no batch left, and so do not call it.
            WrongTypeError: ``input_data`` has anything other than tensors in it, and is not a list of objects.
        """
        strategy = self._live_strategy()
        self._refuse_absent()
        real = self.gradient_state.real_samples
        padding = (PADDING, str(real))
        if use_gather_object:
            self._agree(CALL, [padding])
            return self._gather_listed(input_data, real)
        rows = describe_leaves(input_data, "input_data", int(real is not None))
        given = self._compare(CALL, [padding, *rows])
        if not all(is_tensor_row(row) for part in ([rows] if given is None else given) for row in part):
            if given is not None:
                self._agree(CALL, [padding])
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

    def _warn_of_padded_mean(self, input_data: Any, real: Real) -> None:
        """Warn of one value for a batch of which some items are padding: nothing can leave these out of it."""
        loader = self.gradient_state.active_dataloader
        is_padded = any(0 < (count or 0) < max(count or 0 for count in real) for count in real)
        if loader is None or not loader.even_batches or not is_padded:
            return
        for place, leaf in leaves(input_data, "input_data"):
            if isinstance(leaf, Tensor) and (not leaf.dim() or len(leaf) == 1 < (real[0] or 0)):
                padded.warning_once(
                    "%s: %s is one value for a batch that has padding, so the items that pad it count in that value. "
                    "Give one value for each item, as by reduction='none'",
                    CALL,
                    place,
                )

    def _refuse_absent(self) -> None:
        """Refuse a batch that some processes do not have: the collective would wait for them."""
        absent = self._absent()
        if absent:
            raise ConfigurationError(
                f"{CALL}: {absent} have no batch left, because of even_batches=False, and so do not call it. Leave "
                f"even_batches=False out: then each process has the same number of batches, and {CALL} drops what pads "
                "the last one. Or collect results in the loop, and call gather_object after it."
            )

    def _compare(self, call: str, rows: Sequence[Row], *, site: str | None = None) -> list[list[Row]] | None:
        """See the base class; warns if some processes have probably left the loop and do not make the call."""
        if self._warns_of_absent and (absent := self._absent()):
            self._warns_of_absent = False
            logger.warning(
                "%s: %s have no batch left, because of even_batches=False. If they do not call it too, this process "
                "waits for them; call it after the loop",
                call,
                absent,
            )
        return super()._compare(call, rows, site=site)

    def _absent(self) -> str:
        """The processes that have no batch next to this one's newest; empty if there are none."""
        parts = self.gradient_state.absent_parts
        if not parts:
            return ""
        shards = self._strategy.data_shards
        whose = "rank(s)" if shards == self._strategy.world_size else "the processes of part(s)"
        return f"{whose} {', '.join(map(str, parts))} of {shards}"

    def _gather_listed(self, own: Any, real: Real | None, types: tuple[type, ...] = (list, tuple)) -> list[Any]:
        """The lists of all processes, joined without padding."""
        lists = self._gather_lists(CALL, "input_data", own, types)
        ranks = self._ranks()
        counts = [None] * len(ranks) if real is None else real
        return [item for rank, count in zip(ranks, counts, strict=True) for item in lists[rank][:count]]

    def _ranks(self) -> list[int]:
        """For each part of the data, the first process that reads it."""
        if self._ranks_of_shards is None:
            strategy = self._live_strategy()
            self._ranks_of_shards = strategy.gather_shards(strategy.global_rank)
        return self._ranks_of_shards
