"""The output of a progress bar: tqdm's bar on a terminal or in a notebook, elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = ["LINE_SECONDS", "Bar", "Lines", "Memory", "Written", "drawn", "draws_bars"]

LINE_SECONDS = 60.0
"""The time between two lines where no bar can be drawn."""

MEMORY_SECONDS = 1.0
"""The time between two looks at the memory."""


def draws_bars() -> bool:
    """Whether the standard error stream is a terminal, or the cell of a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Written(Protocol):
    """What a progress bar writes."""

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Write ``batches`` more, with ``values``."""

    def close(self) -> None:
        """Leave the line."""


class Bar:
    """A bar.

    Args:
        title: What stands before it.
        total: The number of batches; ``None`` if it is not known.
        initial: The number of batches that are done already.
        leave: Whether it stays on the screen at its end.
        position: How many lines below the cursor; ``None`` for below those that are open.
    """

    def __init__(self, title: str, total: int | None, initial: int, leave: bool, position: int | None) -> None:
        from tqdm.auto import tqdm

        self._tqdm = tqdm(
            total=total,
            desc=title,
            initial=initial,
            leave=leave,
            position=position,
            **_width(),
            mininterval=0,  # when to draw is decided by the callback
            miniters=1,
        )

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._tqdm.set_description(title, refresh=False)
        self._tqdm.set_postfix({}, refresh=False)
        self._tqdm.reset(total)

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Draw ``batches`` more, with ``values``."""
        self._tqdm.set_postfix(values, refresh=False)
        if not self._tqdm.update(batches):
            self._tqdm.refresh()

    def close(self) -> None:
        """Leave the line."""
        self._tqdm.close()


def _width() -> dict[str, Any]:
    """Tqdm's arguments for the width: 80 columns in a terminal that says it has none, as in some containers."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # a stream without a descriptor, as in a notebook
        columns = None
    return {"ncols": 80} if columns == 0 else {"dynamic_ncols": True}


class Lines:
    """Lines in place of a bar; see :class:`Bar`."""

    def __init__(self, title: str, total: int | None, initial: int) -> None:
        self.restart(title, total)
        self._done = self._initial = initial

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._title, self._total, self._done, self._initial = title, total, 0, 0
        self._began = time.monotonic()

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Write a line with ``batches`` more, with ``values``."""
        self._done += batches
        passed = time.monotonic() - self._began
        rate = (self._done - self._initial) / max(passed, 1e-9)
        done = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        pace = f" ({rate:.3g}/s)" if rate else ""
        if rate and self._total is not None and self._total > self._done:
            pace = f"{pace[:-1]}, {_duration((self._total - self._done) / rate)} left)"
        shown = "".join(f", {name}={value}" for name, value in values.items())
        sys.stderr.write(f"{self._title}: {done} batches in {_duration(passed)}{pace}{shown}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Nothing is open."""


class Memory:
    """The memory in use, for a bar; it is read at most once a second, since some devices answer slowly."""

    def __init__(self) -> None:
        self._next, self._shown = 0.0, dict[str, str]()

    def shown(self, trainer: Trainer) -> dict[str, str]:
        """``{"memory": "1.2 GB"}``; nothing if the accelerator does not tell."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + MEMORY_SECONDS
            stats = trainer.accelerator.get_device_stats(trainer.strategy.root_device)
            count = next((stats[name] for name in _MEMORY if name in stats), None)
            self._shown = {} if count is None else {"memory": f"{count / 1e9:.3g} GB"}
        return self._shown


_MEMORY = ("memory_allocated_bytes", "process_memory_bytes")


def _duration(seconds: float) -> timedelta:
    """Whole seconds, as ``0:01:30``."""
    return timedelta(seconds=int(seconds))


def drawn(values: Mapping[str, Any], style: str) -> dict[str, str]:
    """``values`` in the format ``style``, by name, and texts as they are; reading them waits for the device."""
    return {
        name: values[name] if isinstance(values[name], str) else format(float(values[name]), style)
        for name in sorted(values)
    }
