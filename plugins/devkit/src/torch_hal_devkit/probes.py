"""Probes that run in separate processes, see :mod:`torch_hal_devkit.fresh`; arguments and results are plain data."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = [
    "activated",
    "availability",
    "detected",
    "forked",
    "forked_after_use",
    "found",
    "import_changes",
    "listed",
    "settings_of_torch",
    "use_changes",
]

Reference = Mapping[str, Any]
"""``target`` (``"module:Class"``), ``init_args`` and ``name`` of a backend."""


# -- without torch ----------------------------------------------------------------------------------------------------


def listed(prefixes: list[str]) -> list[str]:
    """The modules that ``python -m core.list`` imports and that begin with a prefix."""
    importlib.import_module("torch_hal.list").main([])
    return sorted(name for name in sys.modules if any(name == p or name.startswith(f"{p}.") for p in prefixes))


def activated(module: str, declared: Mapping[str, list[str]]) -> dict[str, Any]:
    """What a hook module returns, and what its activation imports and prints."""
    from torch_hal.discovery.activation import activate

    before = time.monotonic()
    activation = activate(module, {kind: set(names) for kind, names in declared.items()})
    return {
        "seconds": time.monotonic() - before,
        "failures": {f"{kind} {name!r}": failure.reason for (kind, name), failure in activation.failures.items()},
        "output": activation.output,
        "torch": "torch" in sys.modules,
    }


def found(module: str) -> bool:
    """Whether a module exists, without importing it."""
    return importlib.util.find_spec(module) is not None


def detected(function: str) -> dict[str, Any]:
    """What a spec's ``detect`` returns, and whether it imports torch."""
    from torch_hal.discovery.loading import import_target

    answer = import_target(function)()
    return {"answer": repr(answer), "is_count": type(answer) is int and answer >= 0, "torch": "torch" in sys.modules}


# -- with torch -------------------------------------------------------------------------------------------------------


def import_changes(reference: Reference) -> dict[str, str]:
    """What importing a backend's class changes in the process: aspect -> change."""
    import torch

    importlib.import_module("torch_hal.plan")  # exclude what core itself changes
    torch.get_num_threads()
    before = _process_state()
    _load(reference)
    after = _process_state()
    return {aspect: text for aspect in before if (text := _difference(before[aspect], after[aspect]))}


def use_changes(reference: Reference, device: str) -> dict[str, str]:
    """What using a device changes in the process besides the device: aspect -> change."""
    import torch

    accelerator = _create(reference)
    accelerator.import_backend()
    place = torch.device(device)
    torch.get_num_threads()
    torch.ones(2, device=place).sum().item()  # what torch itself sets up with a first tensor is not the accelerator's
    before = _process_state()
    accelerator.setup_device(place)
    accelerator.get_device_stats(place)
    if "rng_state" not in accelerator.unsupported:
        accelerator.set_rng_state(accelerator.get_rng_state(place), place)
    accelerator.synchronize(place)
    accelerator.empty_cache(place)
    accelerator.teardown()
    after = _process_state()
    return {aspect: text for aspect in before if (text := _difference(before[aspect], after[aspect]))}


def availability(reference: Reference) -> dict[str, Any]:
    """What an accelerator reports about the hardware, called twice, and the devices it initialized for that."""
    accelerator = _create(reference)
    before = time.monotonic()
    available = [_shown_result(accelerator.is_available) for _ in range(2)]
    seconds = time.monotonic() - before
    return {
        "available": available,
        "seconds": seconds,
        "counts": [_shown_result(accelerator.auto_device_count) for _ in range(2)],
        "initialized": _initialized(),
    }


def forked(reference: Reference) -> list[str]:
    """What ``is_available`` returns in a process, and in a process that is forked from it afterwards."""
    accelerator = _create(reference)
    here = repr(accelerator.is_available())
    there = in_fork(lambda: repr(_create(reference).is_available()))
    return [here, there]


def forked_after_use(reference: Reference, device: str) -> dict[str, str]:
    """Why a process that used ``device`` cannot be forked; if it can, what the forked process computes."""
    import torch

    accelerator = _create(reference)
    accelerator.import_backend()
    torch.ones(4, device=device).sum().item()
    reason = accelerator.fork_unsafe_reason()
    if reason is not None:
        return {"reason": repr(reason), "computed": ""}
    return {"reason": "", "computed": in_fork(lambda: repr(torch.ones(4, device=device).sum().item()))}


def in_fork(function: Any, limit: float = 20.0) -> str:
    """What ``function`` returns in a forked process, a short text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, function().encode())
        except BaseException as error:  # noqa: BLE001  the result
            os.write(writing, f"{type(error).__name__}: {error}"[:2000].encode())
        finally:
            os._exit(0)
    os.close(writing)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(int(limit))
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    answer = os.read(reading, 4000).decode()
    return answer or f"no answer; it ended with status {os.waitstatus_to_exitcode(status)}"


def _shown_result(function: Any) -> str:
    try:
        return repr(function())
    except Exception as error:  # noqa: BLE001  any exception of a backend is the result
        return f"an exception, {type(error).__name__}: {error}"


def _load(reference: Reference) -> Any:
    from torch_hal.discovery.loading import import_target

    return import_target(reference["target"])


def _create(reference: Reference) -> Any:
    backend = _load(reference)(**reference["init_args"])
    backend.name = reference["name"]
    return backend


def _process_state() -> dict[str, Any]:
    import torch

    return {
        "environment variables": dict(os.environ),
        "working directory": os.getcwd(),
        "signal handlers": {
            number.name: signal.getsignal(number) for number in signal.valid_signals() if _named(number)
        },
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "random state": {"torch": hash(tuple(torch.get_rng_state().tolist())), "python": hash(random.getstate())},
        "number of threads": {"intra-op": torch.get_num_threads(), "inter-op": torch.get_num_interop_threads()},
        "threads": dict.fromkeys((thread.name for thread in threading.enumerate()), "running"),
        "module search path": dict.fromkeys(sys.path, "searched"),
        "child processes": dict.fromkeys(_children(), "running"),
        "settings of torch": settings_of_torch(),
        "devices in use": dict.fromkeys(_initialized(), "initialized"),
    }


def settings_of_torch() -> dict[str, Any]:
    """What torch has set for the whole process."""
    import torch

    return {
        "grad enabled": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": _matmul_precision(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "flush denormal": (torch.tensor(1e-40) * 2).item() == 0,
        "default generator": torch.initial_seed(),
        "linear": id(torch.nn.functional.linear),
        "forward": id(torch.nn.Linear.forward),
    }


def _children() -> list[str]:
    """This process's living children, where the system shows them."""
    found: list[str] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
            found += file.read_text().split()
    return sorted(found)


def _matmul_precision() -> str:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 warns of a setting that is not made here
        return torch.get_float32_matmul_precision()


def _named(number: int) -> bool:
    return isinstance(number, signal.Signals)


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        names = sorted({*before, *after})
        return ", ".join(
            f"{name}: {_shown(before.get(name))} -> {_shown(after.get(name))}"
            for name in names
            if before.get(name) != after.get(name)
        )
    return "" if before == after else f"{before} -> {after}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:80]


def _initialized() -> list[str]:
    """The device types that this process has initialized."""
    import torch
    from torch._C._autograd import DeviceType

    names = {torch._C._get_privateuse1_backend_name(), *map(str.lower, DeviceType.__members__)} - {"cpu"}
    modules = {name: getattr(torch, name, None) for name in names}
    asked = {name: getattr(module, "is_initialized", None) for name, module in modules.items()}
    return sorted(name for name, is_initialized in asked.items() if callable(is_initialized) and is_initialized())
