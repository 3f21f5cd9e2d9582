"""``parent_death.py PARENT COMMAND...``: become ``COMMAND``, which Linux kills when process ``PARENT`` ends.

With ``--blocks-interrupts`` before it, ``COMMAND`` starts with SIGINT blocked, until core unblocks it.

torchrun's agent leaves its processes running if it is killed. This is a script that imports next to nothing; it runs
without site-packages, and takes a few milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys

BLOCKS_INTERRUPTS = "--blocks-interrupts"
_PR_SET_PDEATHSIG = 1
"""Of ``prctl(2)``. It holds for the command too, since exec keeps it."""


def main(parent: int, command: list[str]) -> None:
    """Replace this process by ``command``."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends this script without a traceback
    if command[0] == BLOCKS_INTERRUPTS:
        command = command[1:]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGRTMAX})  # core's launchers.interrupts
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(128 + signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
