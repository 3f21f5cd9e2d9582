"""Bagua's algorithms by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from core.errors import ConfigurationError, nearest, quoted
from torch_hal_bagua.algorithms.async_model_average import AsyncModelAverage
from torch_hal_bagua.algorithms.base import Algorithm
from torch_hal_bagua.algorithms.bytegrad import ByteGrad
from torch_hal_bagua.algorithms.decentralized import Decentralized
from torch_hal_bagua.algorithms.gradient_allreduce import GradientAllReduce
from torch_hal_bagua.algorithms.low_precision_decentralized import LowPrecisionDecentralized
from torch_hal_bagua.algorithms.qadam import QAdam
from torch_hal_bagua.options import word

__all__ = ["ALGORITHMS", "create_algorithm"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        GradientAllReduce,
        ByteGrad,
        Decentralized,
        LowPrecisionDecentralized,
        AsyncModelAverage,
        QAdam,
    )
}


def create_algorithm(
    name: Any, options: Mapping[str, Any], wrapper_arguments: Iterable[str]
) -> tuple[Algorithm, dict[str, Any]]:
    """The algorithm called ``name``, and what of ``options`` is for the module's wrapper instead.

    Args:
        name: A key of :data:`ALGORITHMS`.
        options: By name.
        wrapper_arguments: What DistributedDataParallel takes, where the algorithm puts the module into it.

    Raises:
        ConfigurationError: The name or an option is unknown, or a value is out of its range.
        WrongTypeError: A value is of the wrong type.
    """
    kind = ALGORITHMS[word("algorithm", name, list(ALGORITHMS))]
    own = sorted(inspect.signature(kind).parameters)
    algorithm = kind(**{option: value for option, value in options.items() if option in own})
    rest = {option: value for option, value in options.items() if option not in own}
    valid = sorted(wrapper_arguments) if algorithm.wraps_module else []
    unknown = sorted(set(rest) - set(valid))
    if unknown:
        further = f"; of DistributedDataParallel: {quoted(valid)}" if valid else ""
        raise ConfigurationError(
            f"{quoted(unknown)}: no option of algorithm {name!r}. Valid: {quoted(own)}{further}."
            f"{nearest(unknown[0], [*own, *valid])}"
        )
    return algorithm, rest
