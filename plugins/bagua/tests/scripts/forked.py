"""The processes of a group, forked from one that has imported torch; words: their variables, a script, its words.

Prints their exit codes when all have ended. On SIGTERM they are aborted, and show where each of their threads is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  which every optimizer imports

pids: list[int] = []


def abort(*_: Any) -> None:
    """The handler of SIGTERM."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT)


signal.signal(signal.SIGTERM, abort)
for variables in json.loads(sys.argv[1]):
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(variables)
        sys.argv = sys.argv[2:]
        printed = os.open(f"{sys.argv[0]}.{variables['RANK']}.out", os.O_WRONLY)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        break
    pids.append(pid)
else:
    sys.stdout.write(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]))
    sys.exit()
# Here and not in a namespace of its own, which would go before the interpreter does.
exec(compile(Path(__file__).with_name(sys.argv[0]).read_text("utf-8"), sys.argv[0], "exec", dont_inherit=True))
