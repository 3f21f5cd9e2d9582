"""The largest batch size that fits into memory."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from ..accelerators.base import is_out_of_memory
from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import check_count
from ..utilities.live_runtimes import last_run

logger = logging.getLogger(__name__)

T = TypeVar("T")


@overload
def find_executable_batch_size(
    function: Callable[..., T], starting_batch_size: int = ..., reduce_batch_size_fn: Callable[..., int] | None = ...
) -> Callable[..., T]: ...


@overload
def find_executable_batch_size(
    function: None = ..., starting_batch_size: int = ..., reduce_batch_size_fn: Callable[..., int] | None = ...
) -> Callable[[Callable[..., T]], Callable[..., T]]: ...


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[..., int] | None = None,
) -> Any:
    """Decorate ``function(batch_size, ...)`` so that it is called with smaller batch sizes until the memory suffices.

    ::

        @find_executable_batch_size(starting_batch_size=128)
        def train(batch_size, epochs):
            ...

        train(epochs=3)

    Everything that needs memory must be made inside the function. Later calls begin with the size that was found. In
    several processes, all of them use the smaller size if one has run out of memory. That works if they run out at the
    same step, or between two exchanges with each other. A process that runs out alone in the middle of a step leaves
    the others waiting in a collective, which ends the run with an error.

    Args:
        function: What to call; its first argument is the batch size.
        starting_batch_size: The first size.
        reduce_batch_size_fn: The next size, ``reduce_batch_size_fn(batch_size)``, or without an argument; by default
            nine tenths, rounded down.

    Returns:
        The decorated function, or a decorator if no function was given.

    Raises:
        ConfigurationError: ``starting_batch_size`` is not an integer ≥ 1. In the decorated function: no batch size
            fits, or the next one is not smaller.
        WrongTypeError: In the decorated function: it takes fewer arguments than it was given, probably because a batch
            size was passed.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    check_count("starting_batch_size", starting_batch_size, 1)
    called, batch_size = function, starting_batch_size

    @functools.wraps(called)
    def search(*args: Any, **kwargs: Any) -> Any:
        nonlocal batch_size
        _check_arguments(called, args)
        while True:
            _free_memory()
            try:
                result = called(batch_size, *args, **kwargs)
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                result, failed = None, True
            else:
                failed = False
            # Outside of the except block: its traceback would keep the tensors of the failed call alive.
            if not _any_failed(failed):
                return result
            result, smaller = None, _reduced(batch_size, reduce_batch_size_fn)
            if smaller < 1:
                raise ConfigurationError(
                    f"find_executable_batch_size: {called.__name__} ran out of memory with batch_size={batch_size}, "
                    "and there is no smaller one. Use a smaller model or another precision."
                )
            logger.warning("%s ran out of memory with batch_size=%d; trying %d", called.__name__, batch_size, smaller)
            batch_size = smaller

    return search


def _check_arguments(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        inspect.signature(function).bind_partial(0, *args)
    except TypeError as error:
        given = ", ".join(map(repr, args))
        raise WrongTypeError(
            f"{function.__name__}({given}): {error}. Do not pass a batch size: find_executable_batch_size adds it as "
            "the first argument."
        ) from None


def _reduced(batch_size: int, reduce_batch_size_fn: Callable[..., int] | None) -> int:
    if reduce_batch_size_fn is None:
        return batch_size * 9 // 10
    takes_size = bool(inspect.signature(reduce_batch_size_fn).parameters)
    smaller = int(reduce_batch_size_fn(batch_size) if takes_size else reduce_batch_size_fn())
    if smaller >= batch_size:
        raise ConfigurationError(
            f"reduce_batch_size_fn: returned {smaller} for batch_size={batch_size}. Return a smaller size."
        )
    return smaller


def _is_out_of_memory(error: BaseException) -> bool:
    run = last_run()
    return is_out_of_memory(error) if run is None else bool(run.strategy.accelerator.is_out_of_memory(error))


def _any_failed(failed: bool) -> bool:
    """Whether the call failed in any process."""
    run = last_run()
    if run is None or run.num_processes == 1:
        return failed
    _free_memory()
    return bool(run.reduce(torch.tensor(float(failed), device=run.device), "max") > 0)


def _free_memory() -> None:
    gc.collect()
    run = last_run()
    if run is not None:
        run.strategy.accelerator.empty_cache(run.device)
