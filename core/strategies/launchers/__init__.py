"""Launchers: start the processes of a run if nothing else has started them."""

from __future__ import annotations

import os

from ...environments.local import LAUNCH_VARIABLES, LAUNCHED, claim_ranks, ranks_environ
from .base import Launcher
from .cause import CAUSE, attach_cause
from .function import FunctionLauncher
from .interrupts import attach_lifeline, unblock_interrupts, watch_parent
from .pickling import unpicklable_path
from .script import ScriptLauncher, script_command

__all__ = [
    "FunctionLauncher",
    "Launcher",
    "ScriptLauncher",
    "attach_lifeline",
    "script_command",
    "unpicklable_path",
    "watch_parent",
]

# At import and not when a run begins: a script may run for long before that, and its parent may end meanwhile.
unblock_interrupts()
_path = os.environ.pop(CAUSE, "")
if attach_lifeline(os.environ):
    claim_ranks([LAUNCHED], LAUNCH_VARIABLES)  # the ranks are this process's, also if it starts others before its run
attach_cause(_path, ranks_environ())
