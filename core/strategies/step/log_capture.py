"""The seam between a Module's ``log`` and a strategy.

A strategy that runs a step in parts, or compiles it, runs the step within :func:`collect_logs`, and afterwards logs
each value once, with :meth:`LoggedValue.log`. Other strategies need none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import torch

__all__ = ["LOG_REDUCTIONS", "LoggedValue", "collect_logs", "log_collector", "reduce_logged"]

LOG_REDUCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "mean": lambda a, b: a + b,
    "sum": lambda a, b: a + b,
    "min": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    "max": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
}
"""How two values of one name become one, by ``reduce_fx``. Values of a mean are weighted before, and divided after."""


@attrs.frozen(kw_only=True)
class LoggedValue:
    """One call of :meth:`core.Module.log`. Use :func:`attrs.evolve` to change what is logged."""

    name: str
    value: Any
    """The value as the module gave it: a number or a scalar tensor, unless the module made a mistake."""
    reduce_fx: str
    """A key of :data:`LOG_REDUCTIONS`, unless the module made a mistake."""
    batch_size: int | None
    """The value's weight in a mean; ``None`` for the size of the running batch."""
    options: Mapping[str, Any]
    """The other arguments of the call, by name."""
    record: Callable[..., None]
    """Takes the arguments of :meth:`core.Module.log`."""

    def log(self) -> None:
        """Log the value in the stage that is running now.

        Raises:
            ConfigurationError: The value is not a scalar, or ``reduce_fx`` is unknown.
        """
        self.record(self.name, self.value, reduce_fx=self.reduce_fx, batch_size=self.batch_size, **self.options)


Collector = Callable[[LoggedValue], None]

log_collector: ContextVar[Collector | None] = ContextVar("log_collector", default=None)
"""What takes the logged values of the current thread; ``None`` if they are logged at once."""


@contextmanager
def collect_logs(take: Collector) -> Iterator[None]:
    """A context in which ``take`` gets every value that a module logs in this thread, and nothing else happens to it.

    Contexts may be nested: values that are logged after the inner one go to the outer one.
    """
    token = log_collector.set(take)
    try:
        yield
    finally:
        log_collector.reset(token)


def reduce_logged(values: Sequence[Any], weights: Sequence[float], reduce_fx: str) -> Any:
    """One value for the whole of what ``values`` are parts of.

    Args:
        values: Numbers, or scalar tensors on one device; at least one.
        weights: The weight of each in a mean, such as its number of items.
        reduce_fx: A key of :data:`LOG_REDUCTIONS`.
    """
    if reduce_fx == "mean":
        values = [value * weight for value, weight in zip(values, weights, strict=True)]
    result = values[0]
    for value in values[1:]:
        result = LOG_REDUCTIONS[reduce_fx](result, value)
    return result / (sum(weights) or 1) if reduce_fx == "mean" else result
