"""Starting the processes that nobody else started."""

from __future__ import annotations

import os

from core.strategies.launchers.base import Launcher
from core.strategies.launchers.function import FunctionLauncher
from core.strategies.launchers.lifeline import attach_lifeline, watch_parent
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

# Here and not where a run begins: a script may do much between the two, and the process that started it may be gone.
attach_lifeline(os.environ)
