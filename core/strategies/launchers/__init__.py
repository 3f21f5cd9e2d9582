"""Launchers: start the processes of a run if nothing else has started them."""

from __future__ import annotations

import os

from core.environments.inherited import own_environ, ranks_environ
from core.strategies.launchers.base import Launcher
from core.strategies.launchers.cause import CAUSE, attach_cause
from core.strategies.launchers.function import FunctionLauncher
from core.strategies.launchers.interrupts import unblock_interrupts
from core.strategies.launchers.parent_watch import attach_lifeline, watch_parent
from core.strategies.launchers.pickling import unpicklable_path
from core.strategies.launchers.script import ScriptLauncher, script_command

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
    own_environ()  # the ranks are this process's, also if it starts others before its run
attach_cause(_path, ranks_environ())
