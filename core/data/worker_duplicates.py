"""Noticing an iterable data set whose workers all give the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..logging import get_logger
from ..utilities.nested import leaves

__all__ = ["watched"]

logger = get_logger(__name__)


def watched(batches: Iterator[Any], loader: Any) -> Iterator[Any]:
    """``batches``, with a warning in process 0 if the first ones of two workers are equal.

    Args:
        batches: The batches of a pass from its start.
        loader: What they are read from; only a DataLoader of an iterable data set with several workers is watched.
    """
    if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, IterableDataset) or loader.num_workers < 2:
        return batches
    return _compared(batches, loader)


def _compared(batches: Iterator[Any], loader: DataLoader[Any]) -> Iterator[Any]:
    # The workers take turns: the first two batches come from two of them.
    first = list(islice(batches, 1))
    yield from first
    second = list(islice(batches, 1))
    if first and second and _equal(first[0], second[0]):
        dataset = loader.dataset
        inner = type(getattr(dataset, "dataset", dataset)).__name__
        logger.warning_once(
            "data: the first batches of two workers are equal, so each of the %d workers seems to give every sample of "
            "%s: an epoch has each sample %d times. In its __iter__, give each worker its part by "
            "torch.utils.data.get_worker_info(), or set num_workers to 0 or 1",
            loader.num_workers,
            inner,
            loader.num_workers,
        )
    del first
    yield from second
    del second
    yield from batches


def _equal(one: Any, other: Any) -> bool:
    """Whether both have the same tensors, of which at least one has elements that differ from each other."""
    pairs = [[leaf for _, leaf in leaves(each) if isinstance(leaf, torch.Tensor)] for each in (one, other)]
    if not pairs[0] or len(pairs[0]) != len(pairs[1]):
        return False
    is_telling = any(tensor.numel() > 1 and bool((tensor != tensor.flatten()[0]).any()) for tensor in pairs[0])
    return is_telling and all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))
