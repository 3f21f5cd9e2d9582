"""What a progress bar writes: tqdm's bar on a terminal or in a notebook, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

__all__ = ["LINE_SECONDS", "Bar", "Lines", "Written", "drawn", "draws_bars"]

LINE_SECONDS = 60.0
"""The time between two lines where no bar can be drawn."""


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
            dynamic_ncols=True,
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


class Lines:
    """Lines in place of a bar; see :class:`Bar`."""

    def __init__(self, title: str, total: int | None, initial: int) -> None:
        self.restart(title, total)
        self._done = initial

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._title, self._total, self._done, self._began = title, total, 0, time.monotonic()

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Write a line with ``batches`` more, with ``values``."""
        self._done += batches
        passed = timedelta(seconds=int(time.monotonic() - self._began))
        done = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        shown = "".join(f", {name}={value}" for name, value in values.items())
        sys.stderr.write(f"{self._title}: {done} batches in {passed}{shown}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Nothing is open."""


def drawn(values: Mapping[str, Any]) -> dict[str, str]:
    """``values`` with four digits, by name; reading them waits for the device."""
    return {name: f"{float(values[name]):.4g}" for name in sorted(values)}
