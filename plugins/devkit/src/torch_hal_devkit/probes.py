"""Probes that run in separate processes, see :mod:`torch_hal_devkit.fresh`; arguments and results are plain data."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from torch_hal_devkit.process_state import changes, draw, recorded, unusual

__all__ = [
    "activated",
    "availability",
    "detected",
    "forked",
    "forked_after_use",
    "import_changes",
    "listed",
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
    before = recorded()
    _load(reference)
    return changes(before, recorded())


def use_changes(reference: Reference, device: str) -> dict[str, str]:
    """What using a device changes in the process besides the device: aspect -> change."""
    import torch

    accelerator = _create(reference)
    accelerator.import_backend()
    place = torch.device(device)
    torch.get_num_threads()
    torch.ones(2, device=place).sum().item()  # what torch itself sets up with a first tensor is not the accelerator's
    found = _life_changes(accelerator, place)
    with unusual():
        for aspect, text in _life_changes(_create(reference), place).items():
            found.setdefault(aspect, f"{text}, in a process with unusual settings")
    return found


def _life_changes(accelerator: Any, place: Any) -> dict[str, str]:
    """What the calls of a life change; between any two of them, the user's program draws random numbers."""
    calls = [
        lambda: accelerator.setup_device(place),
        lambda: accelerator.get_device_stats(place),
        lambda: accelerator.get_rng_state(place) if "rng_state" not in accelerator.unsupported else None,
        lambda: accelerator.synchronize(place),
        lambda: accelerator.empty_cache(place),
        lambda: accelerator.is_out_of_memory(RuntimeError("out of memory")),
        lambda: (accelerator.is_available(), accelerator.auto_device_count(), accelerator.device_limit()),
        lambda: accelerator.setup_device(place),
        lambda: (accelerator.fork_unsafe_reason(), accelerator.autocast_device_type(place)),
        accelerator.teardown,
        accelerator.teardown,
    ]
    found: dict[str, str] = {}
    whole = recorded()
    for call in calls:
        draw()
        before = recorded(("random state",))
        call()
        found.update(changes(before, recorded(("random state",))))
    life = changes(whole, recorded())
    life.pop("random state", None)  # drawn from above
    return {**life, **found}


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
        "initialized": [*recorded(("devices in use",))["devices in use"]],
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
