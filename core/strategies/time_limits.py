"""How long processes wait for each other, one way to wait with a limit, and the warning that a wait is long.

The limits of one run depend on each other, so they are next to each other. What a user can set, such as the strategy's
``timeout``, is an argument and not here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.0005, 0.05
"""Pauses between two looks grow: a short wait ends at once, and a long one does not keep the store busy."""
LOOKS_A_SECOND = 2000
"""How often all ranks that wait for one key look for it together: the store serves them in one thread."""


def wait_until(condition: Callable[[], T], seconds: float, pause: float = FIRST_PAUSE_SECONDS) -> T:
    """Call ``condition`` again and again until it returns something true, for ``seconds`` at most.

    Args:
        condition: What to wait for; called at least once. An exception in it ends the wait.
        seconds: The limit.
        pause: The first pause between two calls; each is twice as long as the one before, up to
            :data:`LONGEST_PAUSE_SECONDS`.

    Returns:
        What the last call returned.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = max(pause, min(2 * pause, LONGEST_PAUSE_SECONDS))
    return value


class LongWait:
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


# -- starting and ending processes -----------------------------------------------------------------------------------

PROCESS_POLL_SECONDS = 0.1
"""How often a launcher looks whether a process has ended."""
FAILED_TOO_SECONDS = 1.0
"""How long a launcher waits after a failure for others, so that the error names the process that failed first."""
SAME_SIGNAL_SECONDS = 0.5
"""Within this time, a signal is the same one: a terminal sends it to a whole group, whose launcher forwards it."""
PARENT_POLL_SECONDS = 0.5
"""How often a process looks whether the one that started it still runs."""
ORPHAN_SECONDS = 5.0
"""How long an orphan has to end by SIGTERM: a handler that only sets a flag does not interrupt a collective."""
LEFT_OVER_SECONDS = 8
"""How long processes have to end under ``torch-hal run`` after another has failed: they say why within
:data:`SHOWN_SECONDS`. After a signal they may save."""

# -- the store -------------------------------------------------------------------------------------------------------

PORT_SECONDS = 5.0
"""How long to wait for a port in use. torchrun and others pick a free one, which a connection may take for a moment
before the store opens it."""
ABSENT_SECONDS = 20.0
"""How long a process waits in a collective with ``debug=True`` before a warning names those that have not come."""
TELL_SECONDS = 10.0
"""How long a process waits before it says so."""
CONNECTING_SECONDS = 5.0
"""How long the interpreter's end waits for a thread that connects: torch gives up late by a pause between attempts."""
REQUEST_SECONDS = 5.0
"""The limit of a request of a thread, and so how long :meth:`Stacks.stop` waits for that thread."""
END_REQUEST_SECONDS = 2.0
"""The limit of a request of a process that fails or ends: the store may be gone, and no one waits for the answer."""
STRANGER_SECONDS = 9.0
"""How long what listens at the address of torchrun's rendezvous has for its answer: it may be another program."""
LOST_LINK_SECONDS = 30
"""How long the machine with torchrun's rendezvous may be silent; the operating system would wait for 15 minutes."""
LINK_SCAN_SECONDS = 5.0
"""How often connections to it are looked for: they may be opened at any time."""

# -- whether the others still run ------------------------------------------------------------------------------------

LOOK_SECONDS = 1.0
"""How often a process looks whether one that it waits for still runs, or has ended its script."""
BEAT_SECONDS = 5.0
"""How often a process shows that it runs, to those of other machines, and how often these look."""
SILENT_LOOKS = 12
"""So many looks in a row must find no sign of a process before it counts as ended: it may be busy in C code."""

# -- where the others are --------------------------------------------------------------------------------------------

QUESTION_POLL_SECONDS = 1.0
"""How often a process looks whether another one asks where it is."""
ANSWERS_POLL_SECONDS = 0.1
"""How often the one that asks looks for the answers of all: each look is a request for each that is missing."""
ANSWER_SECONDS = 4.0
"""How long the one that asks waits for the answers: some times :data:`QUESTION_POLL_SECONDS`."""
COLLECTIVE_SECONDS = 3.0
"""How long a process has been in one collective before it asks, and until it asks again: two equal answers count."""
RAISES_SECONDS = ANSWER_SECONDS + 2.0
"""How long rank 0 may take to fail by itself when the others have ended, and with them its connections."""
FIRST_LOOK_SECONDS = 4.0
"""How long a process that has ended its part waits for the others before it looks where they are."""
LOOKS_APART_SECONDS = 4.0
"""A process that is still in the same call after so long does not come out of it."""

# -- which process failed first --------------------------------------------------------------------------------------

SHOWN_SECONDS = 4.0
"""How long a process that lost another looks for the reason, and waits until that process has shown it."""
ENDED_SHOWN_SECONDS = 1.0
"""The limit if the other process is known to have ended."""
ENDING_SECONDS = 20.0
"""How long the interpreter's end waits for a thread that ends this process, and asks the others before."""

# -- leaving a run ---------------------------------------------------------------------------------------------------

LEAVE_SECONDS = 30.0
"""How long a process that leaves waits for the others, and again as long while one of them writes a checkpoint."""
SAVES_POLL_SECONDS = 0.2
"""How often a process looks whether another one still writes a checkpoint."""
ABANDON_SECONDS = 5.0
"""How long destroying the process group may take: much less, unless a collective is in progress."""
CALLBACKS_SECONDS = 1.0
"""How long a callback of a collective that has run may take to release what it holds."""

# -- saving with those that call it ----------------------------------------------------------------------------------

OPTIONAL_SECONDS = 0.5
"""How long process 0 waits for the others where they add nothing, or where none of them came the last time."""
NEEDED_SECONDS = 20.0
"""How long process 0 waits for the others where it cannot do without them."""
STATES_SECONDS = 5.0
"""How long process 0 waits for the states of the other processes: without them, the resumed run is not exact."""

# -- signals to a fit ------------------------------------------------------------------------------------------------

SIGNAL_POLL_SECONDS = 0.5
"""How often a process looks whether another received a signal."""
SIGNAL_TOLD_SECONDS = 20.0
"""How long after a signal a process says which batch it still waits for."""
AGREE_SECONDS = 60.0
"""How long processes wait for each other's answers: for a batch of each."""
ALONE_SECONDS = 5.0
"""How long a process has to end after a signal, if another has ended and so they cannot agree."""
LATE_SIGNAL_SECONDS = 5.0
"""How long after the end of a fit the same signal may still come from the launcher, on a busy machine."""
REQUEUE_SECONDS = 60.0
"""How long the scheduler may take to accept that the job is started again."""
