"""Running Python code in a separate process that may crash or hang, and reading what it leaves behind.

``torch-hal list --probe`` and the conformance kit query plugins and hardware this way. This module imports only the
standard library.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, Self

__all__ = ["FROZEN_CHILD", "ChildProcess", "describe_end", "kill_group", "run_as_frozen_child"]

FROZEN_CHILD = "CORE_FROZEN_CHILD"
"""Set for a child of a frozen program, in which only the program itself can be started: the folder with its task."""

_BOOT = """\
import json, os, sys
directory = sys.argv[1]
with open(os.path.join(directory, "task"), encoding="utf-8") as file:
    task = json.load(file)
sys.path[:] = task["path"]
"""


class ChildProcess:
    """A Python process in its own session, with a folder through which it gets its task and returns answers.

    Used as a context manager: on exit, the process and everything that it started is killed and the folder is removed.

    Args:
        code: What the process executes. It finds ``directory``, the path of the folder, and ``task``.
        task: Plain data.
        environ: The environment variables of the process; this process's own by default.
        cwd: The working directory; this process's own by default.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self, code: str, task: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, cwd: Any = None
    ) -> None:
        path = [str(entry) or os.path.abspath(cwd or "") for entry in sys.path]
        self.directory = tempfile.mkdtemp(prefix="torch-hal-")
        self.timed_out = False
        """Whether :meth:`wait` killed the process because its time was over."""
        try:
            with open(self._file("task"), "w", encoding="utf-8") as file:
                file.write(json.dumps({**task, "path": path}))  # many times faster than json.dump
            with open(self._file("output"), "wb") as output:
                command = [sys.executable, "-P", "-u", "-c", _BOOT + code, self.directory]
                if getattr(sys, "frozen", False):
                    with open(self._file("code"), "w", encoding="utf-8") as file:
                        file.write(_BOOT + code)
                    command = [sys.executable, *sys.orig_argv[1:]]
                    environ = {**(os.environ if environ is None else environ), FROZEN_CHILD: self.directory}
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=None if environ is None else dict(environ),
                    cwd=cwd,
                    start_new_session=True,
                )
        except OSError:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        kill_group([self._process])
        shutil.rmtree(self.directory, ignore_errors=True)

    def wait(self, limit: float) -> None:
        """Wait until the process has ended; kill it after ``limit`` seconds. Whatever it started is killed too."""
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self.timed_out = True
        kill_group([self._process])

    def is_running(self, wait: float = 0.0) -> bool:
        """Whether the process has not ended after at most ``wait`` seconds."""
        try:
            self._process.wait(wait)
        except subprocess.TimeoutExpired:
            return True
        return False

    @property
    def exit_code(self) -> int:
        """The exit code; the negative number of the signal that killed the process."""
        code = self._process.returncode
        assert code is not None, "the process has not ended"
        return code

    @property
    def output(self) -> str:
        """What the process and everything that it started printed."""
        return self.read("output")

    def read(self, name: str) -> str:
        """The content of a file in the process's folder; empty if there is none."""
        try:
            with open(self._file(name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def lines(self, name: str) -> list[Any]:
        """A file's lines of JSON, without one that was being written when the process died."""
        return [json.loads(line) for line in self.read(name).split("\n")[:-1]]

    def _file(self, name: str) -> str:
        return os.path.join(self.directory, name)


def run_as_frozen_child() -> None:
    """In a child of a frozen program, do its task instead of what the program does, and end the process.

    Such a program has no interpreter that runs other code. It is started again, as it was, and comes here when it
    imports this package.
    """
    directory = os.environ.pop(FROZEN_CHILD, "")
    if not directory:
        return
    status = 0
    try:
        with open(os.path.join(directory, "code"), encoding="utf-8") as file:
            code = compile(file.read(), "<string>", "exec")
        sys.argv = ["-c", directory]
        exec(code, {"__name__": "__main__"})  # what `python -c` would run
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # the interpreter prints it and exits with 1; nothing may come after it
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def kill_group(processes: Iterable[subprocess.Popen[Any]]) -> None:
    """Kill processes, and every process in the group that the first one leads; wait for them."""
    processes = list(processes)
    for process in processes[:1]:
        try:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        except ProcessLookupError:
            pass
    for process in processes:
        process.wait()


def describe_end(code: int) -> str:
    """How a process ended: ``killed by SIGSEGV``, ``ended with exit code 3``."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {int(number): number.name for number in signal.Signals}
    return f"killed by {names.get(-code, f'signal {-code}')}"
