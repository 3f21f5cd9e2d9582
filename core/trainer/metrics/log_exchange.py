"""An exchange of logged values between processes: matched by name, never by the order of the calls."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigurationError
from ...strategies.base import Strategy
from ...strategies.training_step import LOG_REDUCTIONS
from ...utilities.objects import by_rank
from .metric import Pending

OwnValue = tuple[str, Tensor, float, Any]
"""A process's own part of an epoch's value: ``reduce_fx``, the total, its weight; and the place in which each
process logs it that has been there."""
OfEpoch = tuple[Mapping[str, OwnValue], Collection[Any]]
"""What a process has logged in an epoch, and the places in which it has been: in batches of a loader, or at the end."""

NOWHERE = "nowhere"
"""The place of what need not be logged by every process."""
HELD = 14
"""So many values are exchanged together with the checksum of their names; more than that take a second collective."""

REMEDY = (
    "Call log with the same names in every process, for the same batches; or leave out sync_dist=True, and loggers get "
    "the value of process 0."
)


def exchanged(strategy: Strategy, own: Mapping[str, Pending]) -> dict[str, Tensor]:
    """The values that were logged in training steps, each reduced over all processes, as float64 scalars on the CPU.

    Every process calls it, also one that has none. It is one small collective, as long as there are few values.

    Raises:
        ConfigurationError: The processes have not logged the same names for the same batches; raised in every process.
    """
    names = sorted(own)
    facts = [(name, own[name].reduce_fx, own[name].batch) for name in names]
    # Bits of float64, as integers: every engine and device exchanges these.
    values = torch.tensor([float(own[name].value) for name in names], dtype=torch.float64).view(torch.int64)
    packed = torch.zeros(2 + HELD, dtype=torch.int64)
    packed[0], packed[1] = zlib.crc32(json.dumps(facts).encode()) if facts else 0, strategy.data_shard
    packed[2 : 2 + min(len(names), HELD)] = values[:HELD]
    with strategy.assume_alike():
        gathered = strategy.all_gather(packed).cpu()
        if len(set(gathered[:, 0].tolist())) > 1:
            raise _difference(strategy.all_gather_object(facts))
        if not names:
            return {}
        parts = [gathered[:, 2:], strategy.all_gather(values[HELD:]).cpu()] if len(names) > HELD else [gathered[:, 2:]]
    shards = gathered[:, 1].tolist()
    first = [shards.index(shard) for shard in sorted(set(shards))]  # one process for each part of the data
    table = torch.cat(parts, 1)[first, : len(names)].contiguous().view(torch.float64)
    return {name: _reduced(table[:, number], own[name].reduce_fx) for number, name in enumerate(names)}


def _reduced(values: Tensor, reduce_fx: str) -> Tensor:
    return values.mean() if reduce_fx == "mean" else reduce(LOG_REDUCTIONS[reduce_fx], values.unbind())


def _difference(facts: Sequence[Sequence[tuple[str, str, int]]]) -> ConfigurationError:
    """The error for what each rank has logged since the last exchange: what not all of them have."""
    names = [{name for name, *_ in of_rank} for of_rank in facts]
    if all(each == names[0] for each in names):
        shown = [
            [f"{name!r} with reduce_fx={reduce_fx!r} in batch {batch}" for name, reduce_fx, batch in of_rank]
            for of_rank in facts
        ]
    else:
        shown = [[repr(name) for name in sorted(each)] for each in names]
    common = set.intersection(*map(set, shown))
    given = [", ".join(one for one in of_rank if one not in common) or "nothing more" for of_rank in shown]
    given = ["nothing" if not of_rank else text for of_rank, text in zip(shown, given, strict=True)]
    return ConfigurationError(
        f"log(sync_dist=True): the processes logged different values in training: {by_rank(given)}. {REMEDY}"
    )


def combined(of_ranks: Mapping[int, OfEpoch]) -> dict[str, Tensor]:
    """The values of an epoch, each combined over the processes that have logged it.

    Args:
        of_ranks: What they have logged, by rank.

    Raises:
        ConfigurationError: A name has several reductions; or it was logged with ``sync_dist=True``, and not by a
            process that could.
    """
    found: dict[str, dict[int, OwnValue]] = {}
    for rank, (values, _) in of_ranks.items():
        for name, value in values.items():
            found.setdefault(name, {})[rank] = value
    return {name: _whole(name, values, of_ranks) for name, values in found.items()}


def _whole(name: str, values: Mapping[int, OwnValue], of_ranks: Mapping[int, OfEpoch]) -> Tensor:
    (reduce_fx, total, weight, place), *others = values.values()
    if any(other[0] != reduce_fx for other in others):
        given = "; ".join(f"rank {rank}: {value[0]!r}" for rank, value in values.items())
        raise ConfigurationError(
            f"log({name!r}): reduce_fx differs between processes: {given}. Give one name one reduction."
        )
    absent = [rank for rank, (_, places) in of_ranks.items() if rank not in values and place in places]
    if absent:
        raise ConfigurationError(
            f"log({name!r}, sync_dist=True): logged in this epoch by rank(s) {_listed(values)}, and not by rank(s) "
            f"{_listed(absent)}. Call it in every process; or leave out sync_dist=True: the value of an epoch is "
            "always reduced over all processes that log it."
        )
    for _, other, more, _ in others:
        total, weight = LOG_REDUCTIONS[reduce_fx](total, other), weight + more
    return total / weight if reduce_fx == "mean" else total


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
