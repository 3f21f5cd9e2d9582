"""What belongs to the whole process: a recording of it, a comparison of two, and a state that no default is like."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["ASPECTS", "OF_A_LIFE", "State", "changes", "draw", "recorded", "settings_of_torch", "unusual"]

State = Mapping[str, Any]
"""By aspect, what is set; of some aspects by name."""

_FUNCTIONS = (
    *("torch:save", "torch:load", "torch.nn.functional:linear", "torch.nn:Linear.forward"),
    *("torch:Tensor.backward", "torch.nn:Module.__call__", "torch.nn:Module.state_dict", "torch.nn:Module.to"),
    *("torch.optim:Optimizer.zero_grad", "torch.nn.functional:dropout", "torch.autograd:backward"),
)
"""Functions that a backend might replace for the whole process."""

_SET_BY_TORCH: Mapping[type, Any] = {str: ("TORCHINDUCTOR_", "TRITON_"), bytes: (b"TORCHINDUCTOR_", b"TRITON_")}
"""Variables that torch's compiler sets when it is imported, by whatever first needs it."""

_LOGGERS = ("root", "torch", "torch_hal", "core")


def recorded(aspects: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The state of this process by aspect, of all :data:`ASPECTS` by default; it imports torch."""
    return {aspect: _ASPECTS[aspect]() for aspect in (ASPECTS if aspects is None else aspects)}


def changes(before: State, after: State) -> dict[str, str]:
    """What differs between two recordings, by aspect, in words."""
    return {aspect: text for aspect in before if (text := _difference(before[aspect], after[aspect]))}


def draw() -> None:
    """Draw from each generator of the process, so that one that is set back to an earlier state is noticed."""
    import torch

    random.random()
    torch.rand(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.random()


# -- aspects -----------------------------------------------------------------------------------------------------------


def settings_of_torch() -> dict[str, Any]:
    """What torch has set for the whole process."""
    import torch

    cudnn = torch.backends.cudnn
    return {
        "grad enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "uninitialized memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "float32 matmul precision": _matmul_precision(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "flush denormal": (torch.tensor(1e-40, dtype=torch.float32) * 2).item() == 0,
        "default generator": torch.initial_seed(),
        "print options": str(torch._tensor_str.PRINT_OPTS),
    }


@cache
def _owner(name: str) -> tuple[Any, str]:
    """The module or class that has a function, and the function's own name."""
    module, _, path = name.partition(":")
    *parts, last = path.split(".")
    owner: Any = sys.modules[module]
    for part in parts:
        owner = getattr(owner, part)
    return owner, last


def _matmul_precision() -> str:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 warns of a setting that is not made here
        return torch.get_float32_matmul_precision()


def _generators() -> dict[str, Any]:
    import torch

    found = {"torch": hash(torch.get_rng_state().numpy().tobytes()), "python": hash(random.getstate())}
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state(legacy=False)["state"]
        found["numpy"] = hash((state["key"].tobytes(), state["pos"]))
    return found


def _variables() -> dict[Any, Any]:
    """The environment variables; as bytes where Python keeps bytes, since decoding them takes as long as all else."""
    kept: Any = getattr(os.environ, "_data", os.environ)
    return {name: value for name, value in kept.items() if not name.startswith(_SET_BY_TORCH[type(name)])}


_SIGNALS = {one.name: one for one in signal.Signals if one in signal.valid_signals() and one != signal.SIGALRM}
"""By name; without that of the kit's own time limit."""


def _handlers() -> dict[str, Any]:
    return {name: signal.getsignal(number) for name, number in _SIGNALS.items()}


def _filters() -> list[str]:
    """The filters for every message of Python's own categories; modules set others as they are imported."""
    return [
        f"{action} {category}"
        for action, message, category, module, _ in warnings.filters
        if message is None and module is None and getattr(category, "__module__", "") == "builtins"
    ]


def _logging() -> dict[str, Any]:
    levels = {name: logging.getLogger(None if name == "root" else name).level for name in _LOGGERS}
    return {**levels, "disabled to": logging.root.manager.disable, "handlers": [*map(str, logging.root.handlers)]}


def _settings_of_python() -> dict[str, Any]:
    found = {
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "stdout": id(sys.stdout),
        "stderr": id(sys.stderr),
        "arguments": tuple(sys.argv),
        "bytecode": sys.dont_write_bytecode,
        "umask": _umask(),
        "time limit of sockets": socket.getdefaulttimeout(),
        "locale": locale.setlocale(locale.LC_ALL),
    }
    if "numpy" in sys.modules:
        found["floating point errors of numpy"] = str(sys.modules["numpy"].geterr())
    return found


def _umask() -> str:
    with suppress(OSError), open("/proc/self/status", encoding="utf-8") as file:  # setting it would not be safe
        return next((line.split()[1] for line in file if line.startswith("Umask:")), "")
    return ""


def _children() -> list[str]:
    """This process's living children, where the system shows them."""
    found: list[str] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
            found += file.read_text().split()
    return sorted(found)


def _initialized() -> list[str]:
    """The device types that this process has initialized."""
    import torch
    from torch._C._autograd import DeviceType

    names = {torch._C._get_privateuse1_backend_name(), *map(str.lower, DeviceType.__members__)} - {"cpu"}
    modules = {name: getattr(torch, name, None) for name in names}
    asked = {name: getattr(module, "is_initialized", None) for name, module in modules.items()}
    return sorted(name for name, is_initialized in asked.items() if callable(is_initialized) and is_initialized())


def _of_torch(name: str) -> Callable[[], Any]:
    return lambda: getattr(sys.modules.get("torch") or __import__("torch"), name)()


def _sharing_strategy() -> str:
    import torch.multiprocessing

    strategy: str = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    return strategy


_ASPECTS: dict[str, Callable[[], Any]] = {
    "environment variables": _variables,
    "working directory": os.getcwd,
    "signal handlers": _handlers,
    "default dtype": _of_torch("get_default_dtype"),
    "default device": _of_torch("get_default_device"),
    "random state": _generators,
    "number of threads": lambda: {
        "intra-op": _of_torch("get_num_threads")(),
        "inter-op": _of_torch("get_num_interop_threads")(),
    },
    "settings of torch": settings_of_torch,
    "sharing strategy": lambda: {"torch.multiprocessing": _sharing_strategy()},
    "functions of torch": lambda: {name: id(getattr(*_owner(name))) for name in _FUNCTIONS},
    "garbage collector": lambda: {"enabled": gc.isenabled(), "thresholds": gc.get_threshold()},
    "warnings filters": _filters,
    "logging": _logging,
    "settings of Python": _settings_of_python,
    "exception hooks": lambda: {"sys": sys.excepthook, "threading": threading.excepthook},
    "module search path": lambda: dict.fromkeys(sys.path, "searched"),
    "threads": lambda: dict.fromkeys((thread.name for thread in threading.enumerate()), "running"),
    "child processes": lambda: dict.fromkeys(_children(), "running"),
    "devices in use": lambda: dict.fromkeys(_initialized(), "initialized"),
}

ASPECTS = tuple(_ASPECTS)
"""All aspects of a process."""

OF_A_LIFE = ("threads", "child processes", "devices in use")
"""Aspects that other threads may change at any time: only a whole life is compared, from creation to teardown."""


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        names = sorted({*before, *after})
        return ", ".join(
            f"{os.fsdecode(name)}: {_shown(before.get(name))} -> {_shown(after.get(name))}"
            for name in names
            if before.get(name) != after.get(name)
        )
    return "" if before == after else f"{before} -> {after}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(os.fsdecode(value) if isinstance(value, bytes) else value)[:80]


# -- an unusual state --------------------------------------------------------------------------------------------------


@contextmanager
def unusual() -> Iterator[None]:
    """A state in which nothing is at its default: what sets a default, instead of what it found, is noticed.

    The state of before is restored at the end, whatever has happened.
    """
    import torch

    matmul = _matmul_precision()
    with ExitStack() as stack:
        later = stack.callback
        later(torch.set_default_dtype, torch.get_default_dtype())
        later(torch.set_num_threads, torch.get_num_threads())
        later(torch.set_grad_enabled, torch.is_grad_enabled())
        later(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        later(torch.set_float32_matmul_precision, matmul)
        later(torch.set_printoptions, profile="default")
        later(gc.set_threshold, *gc.get_threshold())
        later(gc.enable if gc.isenabled() else gc.disable)
        later(sys.setswitchinterval, sys.getswitchinterval())
        later(sys.setrecursionlimit, sys.getrecursionlimit())
        later(socket.setdefaulttimeout, socket.getdefaulttimeout())
        later(logging.disable, logging.root.manager.disable)
        later(logging.root.setLevel, logging.root.level)
        later(os.umask, os.umask(0o027))
        later(os.environ.pop, "KIT_UNUSUAL", None)
        later(setattr, sys, "excepthook", sys.excepthook)
        later(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
        later(random.setstate, random.getstate())
        later(torch.set_rng_state, torch.get_rng_state())
        if "numpy" in sys.modules:
            numpy = sys.modules["numpy"]
            later(numpy.random.set_state, numpy.random.get_state())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", BytesWarning)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 2)
        torch.set_grad_enabled(False)
        torch.set_deterministic_debug_mode("warn")
        torch.set_float32_matmul_precision("medium" if matmul != "medium" else "high")
        torch.set_printoptions(precision=3)  # type: ignore[no-untyped-call]
        gc.set_threshold(701, 11, 11)
        gc.disable()
        sys.setswitchinterval(0.0042)
        sys.setrecursionlimit(sys.getrecursionlimit() + 7)
        socket.setdefaulttimeout(77.0)
        logging.root.setLevel(logging.WARNING + 1)
        logging.disable(3)
        os.environ["KIT_UNUSUAL"] = "1"
        sys.excepthook = _excepthook
        signal.signal(signal.SIGUSR1, _handler)
        draw()
        yield


def _excepthook(*error: Any) -> None:
    sys.__excepthook__(*error)


def _handler(number: int, frame: Any) -> None:
    """A handler of the user."""
