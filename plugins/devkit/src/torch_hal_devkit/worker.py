"""The script of a run under test, ``python -m torch_hal_devkit.worker TASK``; see :mod:`torch_hal_devkit.processes`.

A strategy can start this script again for each of its processes; all that it launches is importable by name.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from torch_hal.discovery.loading import import_target
from torch_hal.strategies.launchers.interrupts import watch_parent

__all__ = ["Journal"]


class Journal:
    """Writes what one process of a run observes to a file that outlives the process.

    Args:
        directory: The folder for the files of all processes.
        rank: The rank of this process.
        only: The names of what is observed; everything by default.
    """

    def __init__(self, directory: str, rank: int, only: Container[str] | None = None) -> None:
        self._file = Path(directory, f"rank-{rank}")
        self.only = only

    def observe(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Record the result of ``function``, as plain data, or the exception that it raises, under ``name``."""
        if self.only is not None and name not in self.only:
            return
        self._write({"begin": name})
        try:
            entry = {"value": function(*arguments)}
        except Exception as error:  # noqa: BLE001  the observation
            kinds = [kind.__name__ for kind in type(error).__mro__]
            entry = {"error": {"kinds": kinds, "text": str(error), "trace": traceback.format_exc()}}
        self._write({"name": name, **entry})

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main(task_file: str) -> None:
    """Run the task."""
    watch_parent(os.getppid())
    task = json.loads(Path(task_file).read_text("utf-8"))
    faulthandler.dump_traceback_later(task["limit"], exit=False)
    import_target(task["function"])(*task["arguments"])
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1])
