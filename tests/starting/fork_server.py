"""Fork server: imports torch once and forks a process for each task, which runs as a newly started Python would.

Importing torch takes seconds of CPU time, and a test session starts hundreds of processes. The server exits when the
process that started it has ended.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import multiprocessing.process
import os
import select
import signal
import socket
import sys
import warnings
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from fork_client import AUTOLOAD, HEAD, likeness

PLAIN_FILTERS = list(warnings.filters)
os.environ[AUTOLOAD] = "0"  # a forked process may have another value
VARIABLES = dict(os.environ)

import imported  # noqa: E402, F401
import numpy  # noqa: E402
import torch  # noqa: E402

SET_BY_IMPORTS = {name: value for name, value in os.environ.items() if VARIABLES.get(name) != value}
PR_SET_PDEATHSIG = 1
FAR = 200
"""First of the temporary descriptors, used while the final ones may still be taken."""


class Server:
    """Forks a process for each connection.

    Args:
        listener: The listening socket.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.like = json.dumps(likeness(os.environ)).encode() + b"\n"
        self.listener = listener
        self.poll = select.poll()
        self.poll.register(listener, select.POLLIN)
        self.channels: dict[int, socket.socket] = {}
        """By descriptor."""
        self.processes: dict[int, int] = {}
        """By descriptor of a channel: the pid of the running process that was forked for it."""
        self.ends: dict[int, int] = {}
        """By pidfd of a forked process: the descriptor of its channel."""

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Serve until the parent has ended. In each forked process, return its task and its descriptors."""
        parent = os.getppid()
        while os.getppid() == parent:
            for number, _ in self.poll.poll(500):
                if number == self.listener.fileno():
                    self.greet()
                elif number in self.ends:
                    self.report(number)
                elif number in self.processes:
                    self.kill(number)
                elif number in self.channels and (forked := self.hear(number)):
                    return forked
        return None

    def greet(self) -> None:
        """Send the settings of this process to a client."""
        channel, _ = self.listener.accept()
        self.channels[channel.fileno()] = channel
        self.poll.register(channel, select.POLLIN)
        with suppress(BrokenPipeError):
            channel.sendall(self.like)

    def hear(self, number: int) -> tuple[dict[str, Any], list[int]] | None:
        """Fork for a client's task, or forget a client that closed the channel since its settings differ."""
        channel = self.channels[number]
        head, files, _, _ = socket.recv_fds(channel, HEAD, 64)
        payload = channel.recv(int(head), socket.MSG_WAITALL) if head else b""
        process = os.fork() if payload else 0
        if payload and not process:
            self.close()
            return json.loads(payload), files
        for file in files:
            os.close(file)
        if not payload:
            self.forget(number)
            return None
        end = os.pidfd_open(process)
        self.processes[number], self.ends[end] = process, number
        self.poll.register(end, select.POLLIN)
        with suppress(BrokenPipeError):
            channel.sendall(f"{process}\n".encode())
        return None

    def kill(self, number: int) -> None:
        """Kill a process whose client has ended, and its process group if it leads one."""
        process = self.processes[number]
        self.poll.unregister(self.channels[number])
        if os.getpgid(process) == process:
            os.killpg(process, signal.SIGKILL)
        os.kill(process, signal.SIGKILL)

    def report(self, end: int) -> None:
        """Send the exit code of a process that has ended to its client."""
        number = self.ends.pop(end)
        self.poll.unregister(end)
        os.close(end)
        _, status = os.waitpid(self.processes.pop(number), 0)
        with suppress(BrokenPipeError):
            self.channels[number].sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        self.forget(number)

    def forget(self, number: int) -> None:
        """Close a channel."""
        with suppress(KeyError):  # it was unregistered when its other end went
            self.poll.unregister(number)
        self.channels.pop(number).close()

    def close(self) -> None:
        """Close the server's descriptors, in a forked process."""
        self.listener.close()
        for channel in self.channels.values():
            channel.close()
        for end in self.ends:
            os.close(end)


def take_over(task: dict[str, Any], files: list[int]) -> None:
    """Give this forked process the state of its client: files, variables, paths, warnings, signals."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if task["session"] == os.getsid(0):
        os.setpgid(0, task["group"])
    else:
        os.setsid()
    far = [os.dup2(file, FAR + place) for place, file in enumerate(files)]
    for file in files:
        os.close(file)
    for file, number in zip(far, task["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.umask(task["umask"])
    signal.signal(signal.SIGINT, signal.default_int_handler if task["interruptible"] else signal.SIG_IGN)
    os.chdir(task["cwd"])
    multiprocessing.process.ORIGINAL_DIR = task["cwd"]  # type: ignore[attr-defined]  # as where it was just imported
    os.environ.clear()
    os.environ.update(SET_BY_IMPORTS | task["environ"])
    for number, (name, settings) in enumerate(zip(("stdin", "stdout", "stderr"), task["streams"], strict=True)):
        unbuffered = number and settings["write_through"]
        binary: Any = open(number, "wb" if number else "rb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        getattr(binary, "raw", binary).name = f"<{name}>"
        stream = io.TextIOWrapper(binary, **settings)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if task["faulthandler"]:
        faulthandler.enable()
    sys.orig_argv[:] = task["orig_argv"]
    sys.path[:] = task["path"]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    warn_as(task["warnoptions"])
    for name in ("sitecustomize", "starting"):
        del sys.modules[name]
    importlib.import_module("sitecustomize")
    own, stands = os.getpid(), task["process"]
    real = os.getppid
    os.getppid = lambda: parent_of(stands) if os.getpid() == own else real()
    # Python reseeds its own generator after a fork.
    numpy.random.seed()
    torch.default_generator.seed()
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()  # type: ignore[no-untyped-call]


def warn_as(options: list[str]) -> None:
    """Set the filters of warnings as an interpreter with these options would, after the same imports."""
    of_imports = warnings.filters[: len(warnings.filters) - len(PLAIN_FILTERS)]
    sys.warnoptions[:] = options
    warnings.filters[:] = PLAIN_FILTERS  # type: ignore[index]
    warnings._processoptions(options)  # type: ignore[attr-defined]
    warnings.filters[:0] = of_imports  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def parent_of(process: int) -> int:
    """The parent of a process; 1, as for an orphan, if there is no such process."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 1


def code_of(task: dict[str, Any], main: dict[str, Any]) -> CodeType:
    """The code of a script, a module or ``-c``; ``main`` becomes its namespace."""
    arguments = task["arguments"]
    main.clear()
    main.update(
        __name__="__main__",
        __doc__=None,
        __package__=None,
        __loader__=None,
        __spec__=None,
        __annotations__={},
        __builtins__=builtins,
    )
    if task["what"] == "script":
        path = arguments[0]
        sys.argv = arguments
        if not task["safe_path"]:
            sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
        path = os.path.abspath(path)
        main.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        with open(path, "rb") as file:
            return compile(file.read(), path, "exec", dont_inherit=True)
    sys.argv = [task["what"], *arguments[2:]]
    if not task["safe_path"]:
        sys.path.insert(0, os.getcwd() if task["what"] == "-m" else "")
    if task["what"] == "-c":
        return compile(arguments[1], "<string>", "exec", dont_inherit=True)
    return compile(f"__import__('runpy')._run_module_as_main({arguments[1]!r})", "<string>", "exec")


def serve(file: int) -> CodeType:
    """Serve; in each forked process, return the code that it runs as ``__main__``.

    Args:
        file: Of the listening socket.
    """
    gc.collect()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads after the imports: what is forked would have one of them"
    forked = Server(socket.socket(fileno=file)).serve()
    if forked is None:
        os._exit(0)
    task, files = forked
    take_over(task, files)
    return code_of(task, vars(sys.modules["__main__"]))
