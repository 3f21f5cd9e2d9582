"""Runs a function in each process that torch_xla starts."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from torch_hal.errors import LaunchError
from torch_hal.random import get_host_rng_state, set_host_rng_state
from torch_hal.strategies import unpicklable_path
from torch_hal_xla.checkpoint_io import on_host
from torch_hal_xla.environment import XLAEnvironment

if TYPE_CHECKING:
    from torch_hal_xla.strategies.parallel import XLAStrategy

__all__ = ["launch"]

_RESULT = "result"
_FAILURE = "failure"
_FAILED = 1


@attrs.frozen
class _Task:
    """What each process runs."""

    strategy: XLAStrategy
    rng_state: Mapping[str, Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def launch(strategy: XLAStrategy, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``function`` in one process or thread per device of this machine.

    Returns:
        The result of local rank 0, with tensors on the CPU.

    Raises:
        LaunchError: An object cannot be pickled, torch_xla cannot start processes, or a process failed, which ends the
            others.
    """
    import torch_xla

    task = _pickled(_Task(strategy, get_host_rng_state(), function, args, kwargs), "function")
    with tempfile.TemporaryDirectory(prefix="torch-hal-xla-") as folder:
        try:
            torch_xla.launch(_work, (task, folder))
        except Exception as error:  # any exception of torch_xla or of its process pool
            failures = [path.read_text() for path in sorted(Path(folder).glob(f"{_FAILURE}-*"), key=_age)]
            raise LaunchError("\n".join(failures) or f"torch_xla.launch failed: {error}") from error
        return pickle.loads((Path(folder) / _RESULT).read_bytes())


def _work(ordinal: int, pickled: bytes, folder: str) -> None:
    """Run the task in a started process."""
    try:
        # Each process and each thread unpickles its own copy.
        task: _Task = pickle.loads(pickled)
        set_host_rng_state(dict(task.rng_state))
        _take_ranks(task.strategy)
        result = task.function(*task.args, **task.kwargs)
        if task.strategy.local_rank == 0:
            (Path(folder) / _RESULT).write_bytes(_pickled(on_host(result), "result"))
    except BaseException as error:  # noqa: BLE001  any exception ends the process and is shown
        report = (
            f"rank {ordinal} failed: {type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
        )
        (Path(folder) / f"{_FAILURE}-{ordinal}").write_text(report)
        # Other processes wait for this one in a collective. torch_xla's process pool would wait for them before it
        # raises an exception, but ends all when one process dies.
        os._exit(_FAILED)


def _take_ranks(strategy: XLAStrategy) -> None:
    strategy.cluster_environment = XLAEnvironment()
    strategy.cluster_environment.connect(strategy.plan.processes_per_node, strategy.plan.num_nodes)


def _pickled(obj: object, name: str) -> bytes:
    try:
        return pickle.dumps(obj)
    except Exception as error:
        path, cause = unpicklable_path(obj, name) or (name, f"{type(error).__name__}: {error}")
        raise LaunchError(
            f"{path} cannot be pickled: {cause}. torch_xla sends it to the processes that it starts. Use an object "
            "that can be pickled."
        ) from error


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns
