"""Ending the processes that are left when one has failed sooner than torchrun's agent does, and which failed before."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from unittest import mock

from torch.distributed.elastic.multiprocessing.api import PContext

from ..strategies.launchers.interrupts import blocks_interrupts

__all__ = ["LeftOver"]

FAILED_SECONDS = 8
"""How long processes have to end after another has failed: they say why within 5. After a signal they may save."""


class LeftOver:
    """A context in which processes that do not end after the failure of another are killed after 8 seconds.

    torchrun's agent would wait 30, and does not tell a process that it has killed from one that was killed before.
    """

    def __init__(self) -> None:
        self._context: PContext | None = None
        self.failed: set[int] = set()
        """The local ranks that had failed when the others were told to end, of the last start."""
        close = PContext.close

        def close_sooner(context: PContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            if context is not self._context:
                self._context, self.failed = context, _failed(context)
            if death_sig == signal.SIGINT:
                _end_importing(context)
            close(context, death_sig, min(timeout, FAILED_SECONDS) if self.failed else timeout)

        # The agent has no setting for the time that it gives processes to end.
        self._patch: Any = mock.patch.object(PContext, "close", close_sooner)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.stop()


def _end_importing(context: PContext) -> None:
    """End the processes that block SIGINT because they still import the script."""
    for process in context.pids().values():
        if blocks_interrupts(process):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)


def _failed(context: PContext) -> set[int]:
    handlers: dict[int, Any] = getattr(context, "subprocess_handlers", {})
    return {rank for rank, handler in handlers.items() if handler.proc.poll()}
