"""The near side of the fork server: a process that was started to train has the server fork what is to be it.

It then only stands for that process: it passes signals on, ends as that one ends, and takes it along when killed.
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
"""What the variables begin with that torch, and the libraries in it, read when they are loaded."""
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
"""What the kit asks that begins with an import of torch."""
HEAD = 8
"""Bytes that say how long a task is."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""The variable by which torch, when imported, loads other packages or none: the forked process heeds it."""
READ_LATER = (AUTOLOAD, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
"""Those among them that need not be the server's; ``torch-hal run`` sets the second, torchrun the third."""


def hand_over_if_it_trains() -> None:
    """Hand this process's task over where a server that is just like this process can do it; else go on."""
    if "fork_server" in sys.modules:  # it was handed over
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
    """Whether a command that runs a script, a module or code, is one that imports torch."""
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
        return b"fork_server" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()  # who starts it was forked
    return "--conformance-child" in arguments[1]


def asked(folder: str) -> str:
    """What the kit asks a separate process, which finds its task in ``folder``."""
    with open(os.path.join(folder, "task"), encoding="utf-8") as file:
        question: str = json.load(file)["question"]
    return question


def what_python_runs(argv: list[str]) -> tuple[str, int]:
    """``"script"``, ``"-m"``, ``"-c"`` or nothing, and where in ``argv`` it says so."""
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
    """What must be the same in the server and in the process that asks it, as JSON reads it."""
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
    network = os.readlink("/proc/self/ns/net")  # tests make hosts of their own
    return {"executable": sys.executable, "flags": flags, "variables": variables, "network": network}


def task(what: str, position: int) -> dict[str, Any]:
    """All that the forked process takes over, but for its files."""
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
    """The files that this process was given: the three streams, and what a program would inherit."""
    further = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                further.append(int(name))
        except OSError:  # that of the listing
            continue
    return [0, 1, 2, *sorted(further)]


def stand_for_it(channel: socket.socket, reader: Any, what: dict[str, Any]) -> NoReturn:
    """Send the task; end when it ends, and in the same way."""
    payload = json.dumps(what).encode()
    # The forked process may be seen at work before its number is known here: a signal waits until it can be passed on.
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
