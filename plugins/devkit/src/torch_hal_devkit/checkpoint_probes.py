"""Probes of a CheckpointIO that run in a separate process: killed saves and full disks, in forks of it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torch_hal.discovery.loading import import_target
from torch_hal.errors import CheckpointError

__all__ = ["killed_at_each_step", "killed_in_time", "out_of_space"]

_FILE_EVENTS = ("open", "os.", "shutil.", "tempfile.", "fcntl.")
_MOST_STEPS = 150
_KILLS = 8
_SMALL, _LARGE = 2**10, 2**21
"""Numbers in a checkpoint's tensor, of 4 bytes each."""
_LIMIT_SECONDS = 60

Reference = Mapping[str, Any]
"""See :mod:`torch_hal_devkit.probes`."""


def killed_at_each_step(reference: Reference, folder: str) -> list[list[str]]:
    """Kill a save before each of its file operations.

    Returns:
        For each operation: its name, what is read afterwards, and what is read after the next save.
    """
    return [
        [event, *_after_kill(reference, Path(folder), _SMALL, lambda step=step: _kill_at(step))]  # type: ignore[misc]
        for step, event in enumerate(_events(reference, Path(folder)))
    ]


def killed_in_time(reference: Reference, folder: str) -> list[list[str]]:
    """Like :func:`killed_at_each_step`, at moments spread over the duration of a save of some megabytes."""
    _renew(reference, Path(folder), _LARGE)
    before = time.monotonic()
    _in_fork(lambda: _save(reference, Path(folder), "new", _LARGE))
    seconds = max(time.monotonic() - before, 0.005)
    moments = [seconds * number / (_KILLS + 1) for number in range(1, _KILLS + 1)]
    return [
        [f"after {moment:.3f} s", *_after_kill(reference, Path(folder), _LARGE, lambda m=moment: _kill_after(m))]  # type: ignore[misc]
        for moment in moments
    ]


def out_of_space(reference: Reference, folder: str, is_new: bool) -> dict[str, str]:
    """Save where no file can be larger than a megabyte; return what the save raises, and what is read afterwards.

    Args:
        reference: The backend.
        folder: The folder to save to.
        is_new: Whether the path is empty before the save.
    """
    _renew(reference, Path(folder), _LARGE)
    if is_new:
        shutil.rmtree(folder)
        Path(folder).mkdir()
    raised = _in_fork(lambda: _save_limited(reference, Path(folder)))
    return {"raised": raised, "read": _read(reference, Path(folder), _LARGE)}


def _after_kill(reference: Reference, folder: Path, size: int, arm: Callable[[], None]) -> tuple[str, str]:
    _renew(reference, folder, size)

    def save() -> str:
        arm()
        return _save(reference, folder, "new", size)

    _in_fork(save)
    read = _read(reference, folder, size)
    _save(reference, folder, "newest", size)
    return read, _read(reference, folder, size)


def _events(reference: Reference, folder: Path) -> list[str]:
    """The file operations of a save, in order."""
    _renew(reference, folder, _SMALL)

    def record() -> str:
        seen: list[str] = []
        sys.addaudithook(lambda event, _: seen.append(event) if event.startswith(_FILE_EVENTS) else None)
        _save(reference, folder, "new", _SMALL)
        return " ".join(seen[:_MOST_STEPS])

    return _in_fork(record).split()


def _kill_at(step: int) -> None:
    steps: Iterator[int] = iter(range(_MOST_STEPS))

    def hook(event: str, _: Any) -> None:
        if event.startswith(_FILE_EVENTS) and next(steps, None) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _kill_after(seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process at once
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _save_limited(reference: Reference, folder: Path) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write is then an OSError
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return _save(reference, folder, "new", _LARGE)


# -- one checkpoint ----------------------------------------------------------------------------------------------------


def _create(reference: Reference) -> Any:
    return import_target(reference["target"])(**reference["init_args"])


def _renew(reference: Reference, folder: Path, size: int) -> None:
    """Leave only the checkpoint ``old`` in the folder."""
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    assert _save(reference, folder, "old", size) == "saved"


def _save(reference: Reference, folder: Path, which: str, size: int) -> str:
    io = _create(reference)
    tensors = [torch.full((size,), float(len(which))) for _ in range(2)]
    try:
        io.save_checkpoint({"which": which, "tensors": tensors}, folder / "checkpoint")
        io.teardown()
    except CheckpointError as error:
        return f"CheckpointError: {error}"
    except Exception as error:  # noqa: BLE001  any exception of a backend is the result
        return f"{type(error).__name__}: {error}"
    return "saved"


def _read(reference: Reference, folder: Path, size: int) -> str:
    try:
        found = _create(reference).load_checkpoint(folder / "checkpoint", map_location="cpu")
    except CheckpointError as error:
        return f"CheckpointError: {error}"
    except Exception as error:  # noqa: BLE001  any exception of a backend is the result
        return f"{type(error).__name__}: {error}"
    expected = torch.full((size,), float(len(found["which"])))
    whole = all(torch.equal(tensor, expected) for tensor in found["tensors"])
    return str(found["which"]) if whole else f"a mixture, of which {found['which']!r} is a part"


def _in_fork(function: Callable[[], str]) -> str:
    """What ``function`` returns in a fork of this process; empty if the fork was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(_LIMIT_SECONDS)  # kills a fork that hangs; killed_in_time sets another timer
            os.write(writing, function().encode()[:60000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text
