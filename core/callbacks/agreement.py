"""Decisions and errors of callbacks that hold in all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ..checkpoints.agreement import decide_on_rank_zero
from ..errors import ConfigurationError, nearest, quoted

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

__all__ = ["decide_in_process_zero", "not_logged"]

T = TypeVar("T")


def decide_in_process_zero(trainer: Trainer, decide: Callable[[], T]) -> T:
    """What ``decide`` returns in process 0, in every process; every process calls this.

    Raises:
        CoreError: It raised one; raised in every process.
    """
    strategy = trainer.strategy
    if strategy.world_size == 1:
        return decide()
    trainer.metric_log.exchange()  # what it decides by
    return decide_on_rank_zero(
        decide, strategy.is_global_zero, strategy.broadcast, lambda error: ConfigurationError(str(error))
    )


def not_logged(owner: str, monitor: str, logged: Iterable[str], remedy: str) -> ConfigurationError:
    """The error for a metric that a callback monitors and the run has not logged."""
    names = sorted(logged)
    return ConfigurationError(
        f"{owner}(monitor={monitor!r}): it has not been logged.{nearest(monitor, names)} Logged: "
        f"{quoted(names) if names else 'nothing'}. {remedy}"
    )
