"""Client of the fork server: a process that is started to train asks the server for a fork that does its work.

From then on it is a proxy for the forked process: it forwards signals, exits with the same code, and if it is killed,
the server kills the forked process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

PASSED_ON = tuple(getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT", "ABRT", "USR1", "USR2"))
READ_AT_IMPORT = ("LD_", "MALLOC_", "MKL_", "NUMPY_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH_")
"""Prefixes of variables that torch and its libraries read when they are loaded."""
READ_AT_START = ("PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONHOME", "PYTHONINTMAXSTRDIGITS", "PYTHONUTF8")
"""Variables that Python reads before it runs anything."""
ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "examples", "tests/examples", "tests/cli", "tests/faults")
"""Folders of programs that train, besides those named ``scripts``."""
MODULES = ("core.run", "torch.distributed.run", "torch_hal.run", "torch_hal_devkit.worker")
"""Modules that are run, and import torch first."""
QUESTIONS = (
    "torch_hal_devkit.checkpoint_probes:",
    *(f"torch_hal_devkit.probes:{name}" for name in ("forked_after_use", "import_changes", "use_changes")),
)
"""Questions of the conformance kit to a separate process whose answer begins with an import of torch."""
HEAD = 8
"""Length in bytes of the header, which holds the length of the task."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Whether torch loads packages of other devices when it is imported: the forked process reads it, not the server."""
READ_LATER = (AUTOLOAD, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
"""Those of them that may differ from the server's: ``torch-hal run`` sets the second, torchrun the third."""


def hand_over_if_it_trains() -> None:
    """Let the fork server do the work of this process, if it trains and the server has the same settings."""
    if "fork_server" in sys.modules:  # this is a forked process
        return
    what, position = what_python_runs(sys.orig_argv)
    if not trains(what, sys.orig_argv[position:]) or sys._xoptions:
        return
    servers = os.environ["FORK_SERVERS"].split(os.pathsep)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(servers[int(os.environ.get("LOCAL_RANK", os.getpid())) % len(servers)])
        reader = channel.makefile("rb")
        if json.loads(reader.readline()) != likeness(os.environ):
            return
        stand_for_it(channel, reader, task(what, position))


def trains(what: str, arguments: list[str]) -> bool:
    """Whether a command, which runs a script, a module or code, imports torch."""
    if what == "script":
        folder = Path(arguments[0]).absolute().parent
        return (folder.name == "scripts" and "tests" in folder.parts) or folder in [ROOT / name for name in FOLDERS]
    if what == "-m":
        kit = arguments[1] == "pytest" and "torch_hal_devkit.plugin" in arguments
        return kit or arguments[1] in MODULES
    if what != "-c":
        return False
    is_asked = "getattr(importlib.import_module(module), function)" in arguments[1]  # by the kit
    if "multiprocessing.spawn" in arguments[1] or (is_asked and asked(arguments[2]).startswith(QUESTIONS)):
        return b"fork_server" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()  # its parent was forked
    return "--conformance-child" in arguments[1]


def asked(folder: str) -> str:
    """The question of the kit to a separate process, from the file in ``folder``."""
    with open(os.path.join(folder, "task"), encoding="utf-8") as file:
        question: str = json.load(file)["question"]
    return question


def what_python_runs(argv: list[str]) -> tuple[str, int]:
    """``"script"``, ``"-m"``, ``"-c"`` or ``""``, and its index in ``argv``."""
    position = 1
    while position < len(argv):
        argument = argv[position]
        if not argument.startswith("-"):
            return "script", position
        if argument in ("-m", "-c"):
            return argument, position
        position += 2 if argument in ("-W", "-X") else 1
    return "", position


def likeness(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings that the server and the process that asks it must share, as values of JSON."""
    flags = {
        name: getattr(sys.flags, name)
        for name in dir(sys.flags)
        if not name.startswith(("_", "n_")) and name not in ("count", "index", "safe_path")
    }
    variables = {
        name: value
        for name, value in environ.items()
        if (name.startswith(READ_AT_IMPORT) or name in READ_AT_START) and name not in READ_LATER
    }
    network = os.readlink("/proc/self/ns/net")  # some tests create network namespaces
    return {"executable": sys.executable, "flags": flags, "variables": variables, "network": network}


def task(what: str, position: int) -> dict[str, Any]:
    """State of this process that the forked one takes over, except open files."""
    streams: tuple[Any, ...] = (sys.stdin, sys.stdout, sys.stderr)
    return {
        "what": what,
        "arguments": sys.orig_argv[position:],
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "safe_path": sys.flags.safe_path,
        "warnoptions": sys.warnoptions,
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "umask": umask(),
        "faulthandler": faulthandler.is_enabled(),
        "interruptible": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
        "streams": [
            {
                "encoding": stream.encoding,
                "errors": stream.errors,
                "line_buffering": stream.line_buffering,
                "write_through": stream.write_through,
            }
            for stream in streams
        ],
        "files": inherited(),
        "process": os.getpid(),
        "group": os.getpgrp(),
        "session": os.getsid(0),
    }


def umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def inherited() -> list[int]:
    """Descriptors that this process passes on: the three streams and all that are inheritable."""
    further = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                further.append(int(name))
        except OSError:  # the descriptor that listdir used
            continue
    return [0, 1, 2, *sorted(further)]


def stand_for_it(channel: socket.socket, reader: Any, what: dict[str, Any]) -> NoReturn:
    """Send the task to the server, then exit when the forked process does, with its code or signal."""
    payload = json.dumps(what).encode()
    # A test may send a signal once the forked process prints; its pid may arrive here later, so block signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    socket.send_fds(channel, [f"{len(payload):{HEAD}}".encode()], what["files"])
    channel.sendall(payload)
    forked = json.loads(reader.readline())
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(forked, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    end = reader.readline()
    if not end:
        sys.stderr.write(f"the fork server has gone, and process {forked} with it\n")
        os._exit(70)
    code = json.loads(end)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
