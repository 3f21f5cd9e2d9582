"""Saying for whom a process waits, where and until when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

__all__ = ["Patience", "address_of"]

TELL_SECONDS = 10.0
"""How long a process waits before it says so."""

logger = logging.getLogger(__name__)


class Patience:
    """A wait for other processes: logs one warning when it gets long.

    Args:
        what: Who waits for what, where.
        limit: How long it waits.
    """

    def __init__(self, what: str, limit: timedelta) -> None:
        self._what, self._limit = what, limit
        self._begin = time.monotonic()
        self._has_told = False

    @property
    def is_over(self) -> bool:
        """Whether the time limit is reached."""
        return self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""
        return self._begin + self._limit.total_seconds() - time.monotonic()

    @property
    def seconds_to_next(self) -> float:
        """Until :meth:`tell` has something to say, or the time limit."""
        to_tell = self._begin + TELL_SECONDS - time.monotonic()
        return max(0.0, self.seconds_left if self._has_told else min(to_tell, self.seconds_left))

    def tell(self, whom: Callable[[], str] | None = None) -> None:
        """Log a warning, once, if the wait has become long.

        Args:
            whom: Returns for whom it waits; called only for the warning.
        """
        waited = time.monotonic() - self._begin
        if self._has_told or waited < TELL_SECONDS or self.is_over:
            return
        self._has_told = True
        until = datetime.now().astimezone() + timedelta(seconds=self.seconds_left)
        logger.warning(
            "%s%s since %.0f s, at most until %s",
            self._what,
            "" if whom is None else f", {whom()},",
            waited,
            f"{until:%Y-%m-%d %H:%M:%S %Z}",
        )


def address_of(store: Store) -> str:
    """Where ``store`` is served, as in ``" at 127.0.0.1:29500"``; empty if it does not tell."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return "" if host is None or port is None else f" at {host}:{port}"
