"""Bagua's algorithms by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch_hal.errors import ConfigurationError, nearest, quoted
from torch_hal.strategies import ProcessGroupParts
from torch_hal_bagua.algorithms.async_model_average import AsyncModelAverage
from torch_hal_bagua.algorithms.base import Algorithm
from torch_hal_bagua.algorithms.bytegrad import ByteGrad
from torch_hal_bagua.algorithms.decentralized import Decentralized
from torch_hal_bagua.algorithms.gradient_allreduce import GradientAllReduce
from torch_hal_bagua.algorithms.low_precision_decentralized import LowPrecisionDecentralized
from torch_hal_bagua.algorithms.qadam import QAdam
from torch_hal_bagua.options import choice

__all__ = ["ALGORITHMS", "OPTIONS", "create_algorithm"]

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

OPTIONS = {
    name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for kind in ALGORITHMS.values()
    for name, parameter in inspect.signature(kind).parameters.items()
}
"""The options of all algorithms, by name."""


def create_algorithm(
    name: Any, options: Mapping[str, Any], wrapper_arguments: Iterable[str]
) -> tuple[Algorithm, dict[str, Any]]:
    """Create an algorithm.

    Args:
        name: A key of :data:`ALGORITHMS`.
        options: The algorithm's options, and arguments of DistributedDataParallel.
        wrapper_arguments: The arguments of DistributedDataParallel, for algorithms that wrap the module in it.

    Returns:
        The algorithm, and the arguments of DistributedDataParallel among ``options``.

    Raises:
        ConfigurationError: The name or an option is unknown, or a value is out of its range.
        WrongTypeError: A value has the wrong type.
    """
    kind = ALGORITHMS[choice("algorithm", name, list(ALGORITHMS))]
    own = sorted(inspect.signature(kind).parameters)
    algorithm = kind(**{option: value for option, value in options.items() if option in own})
    rest = {option: value for option, value in options.items() if option not in own}
    valid = sorted(wrapper_arguments) if algorithm.wraps_module else []
    unknown = sorted(set(rest) - set(valid))
    if unknown:
        further = f"; of DistributedDataParallel: {quoted(valid)}" if valid else ""
        raise ConfigurationError(
            f"BaguaStrategy: unknown argument {quoted(unknown)} for algorithm {name!r}. Valid: {quoted(own)}{further}."
            f"{nearest(unknown[0], [*own, *valid, *ProcessGroupParts.__annotations__])}"
        )
    return algorithm, rest
