"""Values that the processes of a run exchange: collectives on nested structures of tensors and on objects; division."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from numbers import Real
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..data.shards import Real as RealItems
from ..errors import ConfigurationError, WrongTypeError
from ..logging import get_logger
from ..strategies.base import Strategy
from ..strategies.reductions import check_reduction
from ..utilities.nested import leaves, map_tensors
from ..utilities.objects import by_rank, pickled, unpickled
from .checks import check_leaves, check_process
from .gradient_state import GradientState
from .lifecycle import Life
from .process_control import PADDING, Agreement, describe_leaves, is_tensor_row, refuse_difference

logger = get_logger(__name__)

CALL = "gather_for_metrics"


def split(inputs: Any, shards: int, shard: int, apply_padding: bool) -> Any:
    """Part ``shard`` of ``inputs``, which is cut into ``shards`` contiguous parts.

    Without padding, the first parts have one item more where the length is not divisible. With padding, each has
    ``ceil(length / shards)`` items, and the last item fills the last parts.

    Raises:
        WrongTypeError: ``inputs`` cannot be divided.
        ConfigurationError: The values of a mapping have different lengths.
    """
    length = _length(inputs)
    if apply_padding:
        size = -(-length // shards)
        chosen = [min(number, length - 1) for number in range(shard * size, (shard + 1) * size)]
    else:
        size, extra = divmod(length, shards)
        start = shard * size + min(shard, extra)
        chosen = list(range(start, start + size + (shard < extra)))
    return _take(inputs, chosen)


def _length(inputs: Any, place: str = "inputs") -> int:
    if isinstance(inputs, Mapping):
        lengths = {key: _length(value, f"{place}[{key!r}]") for key, value in inputs.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigurationError(
                f"split_between_processes: the values of {place} have different lengths: {lengths}. Pass values of one "
                "length, one item for each sample."
            )
        return next(iter(lengths.values()), 0)
    is_scalar = isinstance(inputs, Tensor) and not inputs.dim()
    can_take = isinstance(inputs, Sequence | Tensor) or hasattr(inputs, "__array__") or hasattr(inputs, "select")
    if is_scalar or not can_take or isinstance(inputs, str | bytes) or not hasattr(inputs, "__len__"):
        what = "a scalar tensor" if is_scalar else f"an object of type {type(inputs).__name__}"
        raise WrongTypeError(
            f"split_between_processes: {place} is {what}, which cannot be divided. Pass a list, a tuple, a tensor, a "
            "data set of Hugging Face, or a dict of them."
        )
    return len(inputs)


def _take(inputs: Any, chosen: list[int]) -> Any:
    if isinstance(inputs, Mapping):
        taken = {key: _take(value, chosen) for key, value in inputs.items()}
        if not isinstance(inputs, MutableMapping):
            constructor: Any = type(inputs)
            return constructor(taken)
        result = copy.copy(inputs)  # keeps what the class holds in addition to its items
        for key, value in taken.items():
            result[key] = value
        return result
    if isinstance(inputs, list | tuple):
        items = [inputs[number] for number in chosen]
        return items if isinstance(inputs, list) else tuple(items)
    if isinstance(inputs, Tensor) or hasattr(inputs, "__array__"):
        return inputs[chosen]
    if hasattr(inputs, "select"):  # a data set, whose own indexing reads the items
        return inputs.select(chosen)
    return [inputs[number] for number in chosen]


L = TypeVar("L", bound=list[Any])

NUMBERS: Mapping[str, Callable[[list[Any]], Any]] = MappingProxyType(
    {"mean": lambda values: sum(values) / len(values), "sum": sum, "min": min, "max": max, "product": math.prod}
)
"""The reductions, of one number from each process."""


class Collectives:
    """Exchanges values between processes.

    Every process calls these methods, in the same order. Where the processes give structures, shapes or dtypes that
    cannot be combined, all of them raise an error that says which rank gave what.

    Args:
        life: Of the run.
        agreement: Compares what the processes are about to do.
    """

    def __init__(self, life: Life, agreement: Agreement) -> None:
        self._life, self._agreement = life, agreement

    def gather(self, tensor: Any) -> Any:
        """See :meth:`core.Runtime.gather`."""
        strategy = self._life.live()
        self._agreement.agree("gather", describe_leaves(tensor, "tensor"))
        check_leaves("gather", "tensor", tensor)
        with strategy.assume_alike():
            return map_tensors(partial(_gather, strategy), tensor)

    def gather_object(self, object: Any) -> list[Any]:  # noqa: A002  Accelerate's name
        """See :meth:`core.Runtime.gather_object`."""
        self._life.live()
        self._agreement.agree("gather_object")
        return [item for part in self.gather_lists("gather_object", "object", object) for item in part]

    def gather_lists(self, call: str, name: str, own: Any, types: tuple[type, ...] = (list, tuple)) -> list[list[Any]]:
        """The list of each process, by rank; every process raises if one gives an object of another type."""
        error = None if isinstance(own, types) else _described(own, name)
        given = exchange_objects(self._life.live(), call, own, error)
        if any(error for _, error in given):
            raise WrongTypeError(
                f"{call}: {name} must be a {' or '.join(kind.__name__ for kind in types)}. Given: "
                f"{by_rank([error or f'a {type(part).__name__}' for part, error in given])}. Pass a list of "
                "objects, or tensors by themselves."
            )
        return [list(self._here(part)) for part, _ in given]

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """See :meth:`core.Runtime.reduce`."""
        strategy = self._life.live()
        self._agreement.agree(f"reduce({reduction!r})", describe_leaves(tensor, "tensor"))
        check_reduction(reduction)
        check_leaves("reduce", "tensor", tensor, numbers=True)
        own = [leaf for _, leaf in leaves(tensor) if isinstance(leaf, Real)]
        given = strategy.all_gather_object(own) if own else []
        numbers = iter(NUMBERS[reduction](list(values)) for values in zip(*given, strict=True))

        def reduce(own: Tensor) -> Tensor:
            reduced = strategy.reduce(own.detach(), reduction)
            return reduced if scale == 1 else reduced * scale

        def reduce_number(leaf: Any) -> Any:
            if not isinstance(leaf, Real):
                return leaf
            reduced = next(numbers)
            return reduced if scale == 1 else reduced * scale

        with strategy.assume_alike():
            return map_tensors(reduce, tensor, reduce_number)

    def broadcast(self, tensor: Any, from_process: int = 0) -> Any:
        """See :meth:`core.Runtime.broadcast`."""
        strategy = self._life.live()
        check_process("from_process", from_process, strategy.world_size)
        self._agreement.agree(f"broadcast(from_process={from_process})")
        if strategy.world_size == 1:
            return self._here(tensor)
        payload = _packed(tensor) if strategy.global_rank == from_process else b""
        return self._here(_unpacked("broadcast", strategy.broadcast(payload, from_process), from_process))

    def broadcast_object_list(self, object_list: L, from_process: int = 0) -> L:
        """See :meth:`core.Runtime.broadcast_object_list`."""
        received = self.broadcast(object_list, from_process)
        for whose, given in (("", object_list), (f" of process {from_process}", received)):
            if not isinstance(given, list):
                raise WrongTypeError(
                    f"broadcast_object_list: object_list{whose} must be a list, not a {type(given).__name__}. Pass "
                    "[object]."
                )
        object_list[:] = received
        return object_list

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """See :meth:`core.Runtime.pad_across_processes`."""
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise WrongTypeError(f"pad_across_processes: dim={dim!r}: must be an integer.")
        strategy = self._life.live()
        self._agreement.agree(f"pad_across_processes(dim={dim})", describe_leaves(tensor, "tensor", sys.maxsize))
        check_leaves("pad_across_processes", "tensor", tensor)
        sizes = iter(map(max, sizes_along(strategy, tensor, dim)))

        def pad(own: Tensor) -> Tensor:
            return pad_to(own, dim, next(sizes), pad_index, pad_first) if -own.dim() <= dim < own.dim() else own

        return map_tensors(pad, tensor)

    def _here(self, data: Any) -> Any:
        """``data`` with its tensors on this process's device."""
        device = self._life.live().root_device
        return map_tensors(lambda tensor: tensor.to(device), data)


class MetricGathering:
    """``gather_for_metrics``: gathers predictions and targets, and drops the items that pad the last batch.

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


def _described(obj: Any, name: str) -> str:
    """The type of ``obj``, and of the first object in it that is no tensor."""
    found = leaves(obj, name)
    others = [(place, leaf) for place, leaf in found if not isinstance(leaf, Tensor | None) and leaf is not obj]
    inner = f" with one of type {type(others[0][1]).__name__} at {others[0][0]}" if others else ""
    return f"an object of type {type(obj).__name__}{inner}"


def _gather(strategy: Strategy, tensor: Tensor) -> Tensor:
    gathered = strategy.all_gather(tensor.detach())
    return gathered.flatten(0, 1) if tensor.dim() else gathered


def sizes_along(strategy: Strategy, data: Any, dim: int) -> list[list[int]]:
    """For each tensor in ``data`` that has a dimension ``dim``: its size along it in each process, by rank."""
    own = [leaf.shape[dim] for _, leaf in leaves(data) if isinstance(leaf, Tensor) and -leaf.dim() <= dim < leaf.dim()]
    if not own:
        return []
    with strategy.assume_alike():
        sizes: list[list[int]] = strategy.all_gather(torch.tensor(own)).T.tolist()
    return sizes


def pad_to(tensor: Tensor, dim: int, size: int, value: float = 0, first: bool = False) -> Tensor:
    """``tensor``, padded with ``value`` along ``dim`` to ``size``; at the end, unless ``first``."""
    missing = size - tensor.shape[dim]
    if not missing:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    padding = tensor.new_full(shape, value)
    return torch.cat([padding, tensor] if first else [tensor, padding], dim)


def exchange_objects(strategy: Strategy, call: str, obj: Any, note: str | None = None) -> list[tuple[Any, str | None]]:
    """The objects of all processes, by rank, each with its process's note.

    Args:
        strategy: What exchanges them.
        call: The method, for the message.
        obj: This process's object.
        note: Something to tell the others; then ``obj`` is not sent.

    Raises:
        ConfigurationError: An object cannot be pickled; raised in every process.
    """
    if strategy.world_size == 1:
        return [(obj, note)]
    payloads = strategy.all_gather_object((_packed(None if note else obj), note))
    return [(_unpacked(call, payload, rank), note) for rank, (payload, note) in enumerate(payloads)]


def _packed(obj: Any) -> bytes | str:
    """``obj`` pickled, with its tensors on the host; or why it cannot be."""
    try:
        return pickled(map_tensors(Tensor.cpu, obj))
    except Exception as error:  # noqa: BLE001  an object's own pickling may raise anything; all processes are told
        return f"{type(error).__name__}: {error}"


def _unpacked(call: str, payload: bytes | str, rank: int) -> Any:
    if isinstance(payload, str):
        raise ConfigurationError(f"{call}: rank {rank} gave an object that cannot be pickled: {payload}")
    return unpickled(payload)
