"""Running a function in each process that torch_xla starts."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from core.errors import LaunchError
from core.random import get_host_rng_state, set_host_rng_state
from core.strategies.launchers import unpicklable_path
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
    """What each process is to do."""

    strategy: XLAStrategy
    rng_state: Mapping[str, Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def launch(strategy: XLAStrategy, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``function`` in a process, or a thread of one, for each device of this machine.

    Returns:
        What it returned in the first of them, tensors on the CPU.

    Raises:
        LaunchError: Something cannot be pickled, torch_xla cannot start processes, or one of them failed; the others
            are ended then.
    """
    import torch_xla

    task = _pickled(_Task(strategy, get_host_rng_state(), function, args, kwargs), "function")
    with tempfile.TemporaryDirectory(prefix="torch-hal-xla-") as folder:
        try:
            torch_xla.launch(_work, (task, folder))
        except Exception as error:  # what torch_xla or the pool of processes raises
            failures = [path.read_text() for path in sorted(Path(folder).glob(f"{_FAILURE}-*"), key=_age)]
            raise LaunchError("\n".join(failures) or f"torch_xla.launch failed: {error}") from error
        return pickle.loads((Path(folder) / _RESULT).read_bytes())


def _work(ordinal: int, pickled: bytes, folder: str) -> None:
    """What each process does."""
    try:
        # Each has a copy of its own, threads of one process too.
        task: _Task = pickle.loads(pickled)
        set_host_rng_state(dict(task.rng_state))
        _take_ranks(task.strategy)
        result = task.function(*task.args, **task.kwargs)
        if task.strategy.local_rank == 0:
            (Path(folder) / _RESULT).write_bytes(_pickled(on_host(result), "result"))
    except BaseException as error:  # noqa: BLE001  whatever it is, it ends the process and is shown
        said = f"rank {ordinal} failed: {type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
        (Path(folder) / f"{_FAILURE}-{ordinal}").write_text(said)
        # Others wait in a collective for this one. The pool that torch_xla runs them in waits for an exception's turn,
        # but ends them all when one dies.
        os._exit(_FAILED)


def _take_ranks(strategy: XLAStrategy) -> None:
    num_nodes = strategy.cluster_environment.num_nodes
    strategy.cluster_environment = XLAEnvironment()
    strategy.cluster_environment.connect(strategy.local_processes, num_nodes)


def _pickled(obj: object, name: str) -> bytes:
    try:
        return pickle.dumps(obj)
    except Exception as error:
        path, cause = unpicklable_path(obj, name) or (name, f"{type(error).__name__}: {error}")
        raise LaunchError(
            f"{path} cannot be pickled: {cause}. Processes that torch_xla starts are sent what they work on; valid is "
            "what can be pickled."
        ) from error


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns
