"""A check that a strategy applies all of a precision."""

from __future__ import annotations

from ...errors import ConfigurationError
from ...precisions.base import Precision

__all__ = ["check_applied"]


def check_applied(strategy: str, precision: Precision, *, parts: bool, state: bool) -> None:
    """Refuse what only the hooks of a precision do, if the strategy does not call them.

    Args:
        strategy: The strategy's name.
        precision: The precision.
        parts: Whether the strategy converts modules by the precision.
        state: Whether the user's optimizer steps by the precision, and not one that the strategy made of it.

    Raises:
        ConfigurationError: ``precision`` keeps parts in float32, or has another dtype for the optimizer's state.
    """
    options = ["keep_float32"] if precision.keep_float32 and not parts else []
    options += ["state_dtype"] if precision.state_dtype is not None and not state else []
    if options:
        raise ConfigurationError(
            f"precision={precision.name!r} with {' and '.join(options)}: strategy {strategy!r} does it by itself, "
            "without such a setting. Leave it out, or use another strategy, such as 'ddp'."
        )
