"""The runs that are compared with the formulas: an algorithm with its options, and their expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from . import reference
from .reference import Array

LENGTH = 37
"""Numbers in the model: no multiple of 2, 3 or 4, so that parts are padded."""
LR = 0.05
STEPS = 8
QADAM: dict[str, Any] = {"lr": 0.05, "warmup_steps": 3, "weight_decay": 0.1}

History = list[list[Array]]


@attrs.frozen
class Case:
    """One run."""

    algorithm: str
    options: Mapping[str, Any]
    expected: Callable[[Array, Sequence[Sequence[Array]], int], History]
    """Of the first weights, gradients by rank and step, and processes on a machine: weights by step and rank."""
    even: bool = False
    """Whether it needs an even number of those that exchange."""


def _gradients(exchange: Callable[..., Any], hierarchical: bool, average: bool) -> Case:
    def expected(w0: Array, grads: Sequence[Sequence[Array]], local: int) -> History:
        among = partial(exchange, average=average)
        combine = partial(reference.by_machine, local=local, among=among, average=average) if hierarchical else among
        return reference.averaged_gradients(w0, grads, LR, combine)

    algorithm = "gradient_allreduce" if exchange is reference.allreduce else "bytegrad"
    return Case(algorithm, {"hierarchical": hierarchical, "average": average}, expected)


def _decentralized(hierarchical: bool, mode: str, interval: int) -> Case:
    def expected(w0: Array, grads: Sequence[Sequence[Array]], local: int) -> History:
        def wrap(values: Sequence[Array], among: Any) -> Any:
            return reference.by_machine(values, local, among) if hierarchical else among(values)

        return reference.decentralized(w0, grads, LR, interval, mode == "shift_one", wrap)

    options = {"hierarchical": hierarchical, "peer_selection_mode": mode, "communication_interval": interval}
    return Case("decentralized", options, expected, even=mode == "shift_one")


def _low_precision(hierarchical: bool, interval: int) -> Case:
    def expected(w0: Array, grads: Sequence[Sequence[Array]], local: int) -> History:
        return reference.low_precision_decentralized(w0, grads, LR, interval, local if hierarchical else 1)

    options = {"hierarchical": hierarchical, "communication_interval": interval}
    return Case("low_precision_decentralized", options, expected)


def _qadam(hierarchical: bool) -> Case:
    def expected(w0: Array, grads: Sequence[Sequence[Array]], local: int) -> History:
        settings = {"lr": QADAM["lr"], "warmup": int(QADAM["warmup_steps"]), "weight_decay": QADAM["weight_decay"]}
        return reference.qadam(w0, grads, local=local if hierarchical else 1, **settings)

    return Case("qadam", {"hierarchical": hierarchical}, expected)


def _async_warmup(w0: Array, grads: Sequence[Sequence[Array]], local: int) -> History:
    del local
    averaged = reference.averaged_gradients(w0, [g[:3] for g in grads], LR, reference.allreduce)
    rest = reference.averaged_gradients(averaged[-1][0], [g[3:] for g in grads], LR, list)
    return [*averaged, *rest]


CASES: dict[str, Case] = {
    "gradient_allreduce": _gradients(reference.allreduce, False, True),
    "gradient_allreduce sum": _gradients(reference.allreduce, False, False),
    "gradient_allreduce hierarchical": _gradients(reference.allreduce, True, True),
    "bytegrad": _gradients(reference.compressed_allreduce, False, True),
    "bytegrad sum": _gradients(reference.compressed_allreduce, False, False),
    "bytegrad hierarchical": _gradients(reference.compressed_allreduce, True, True),
    "decentralized": _decentralized(False, "all", 1),
    "decentralized every third": _decentralized(False, "all", 3),
    "decentralized hierarchical": _decentralized(True, "all", 1),
    "decentralized shift_one": _decentralized(False, "shift_one", 1),
    "decentralized shift_one every other": _decentralized(False, "shift_one", 2),
    "decentralized shift_one hierarchical": _decentralized(True, "shift_one", 1),
    "low_precision": _low_precision(False, 1),
    "low_precision every third": _low_precision(False, 3),
    "low_precision hierarchical": _low_precision(True, 1),
    "qadam": _qadam(False),
    "qadam hierarchical": _qadam(True),
    # An interval that no test lives to see: after the warm-up everybody is alone.
    "async warmup": Case("async", {"warmup_steps": 3, "sync_interval_ms": 10**7}, _async_warmup),
}


def runs_on(name: str, processes: int, nodes: int) -> bool:
    """Whether the case can run on that layout."""
    case = CASES[name]
    parties = nodes if case.options.get("hierarchical") else processes
    return not case.even or parties == 1 or parties % 2 == 0
