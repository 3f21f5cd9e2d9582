"""A process for each device, and what they say to one another: over gloo, on the host."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from stand_ins import device_count, recorded
from torch._C._distributed_c10d import FileStore

__all__ = ["gather", "launch", "rank", "size"]

_TIMEOUT = timedelta(seconds=60)


class _Member:
    """This process among those that were started; none, where it was not."""

    group: Any = None  # a ProcessGroupGloo; not the default one, which is the user's


def rank() -> int:
    """The number of this process."""
    return 0 if _Member.group is None else int(_Member.group.rank())


def size() -> int:
    """How many processes there are."""
    return 1 if _Member.group is None else int(_Member.group.size())


def gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor of each process, by rank, on the host."""
    own = tensor.detach().cpu().contiguous()
    if _Member.group is None:
        return [own.clone()]
    parts = [torch.empty_like(own) for _ in range(size())]
    _Member.group.allgather([parts], [own]).wait()
    return parts


@recorded("torch_xla.launch")
def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Call ``fn(rank, *args)`` in a process for each device, of which it sees that one alone."""
    processes = 1 if debug_single_process else device_count("XLA_DEVICES")
    before = os.environ.get("XLA_DEVICES")
    os.environ["XLA_DEVICES"] = "1"  # read where a process imports this package
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            ProcessPoolExecutor(processes, mp_context=get_context(start_method)) as pool,
        ):
            started = [pool.submit(_run, number, processes, folder, fn, args) for number in range(processes)]
            for future in started:
                future.result()
    finally:
        del os.environ["XLA_DEVICES"]
        if before is not None:
            os.environ["XLA_DEVICES"] = before


def _run(number: int, processes: int, folder: str, fn: Callable[..., Any], args: Sequence[Any]) -> None:
    os.environ.setdefault("PJRT_LOCAL_PROCESS_RANK", str(number))
    os.environ.setdefault("PJRT_LOCAL_PROCESS_COUNT", str(processes))
    store = FileStore(str(Path(folder) / "store"), processes)
    _Member.group = dist.ProcessGroupGloo(store, number, processes, _TIMEOUT)
    fn(number, *args)
    _Member.group.barrier().wait()
    _Member.group = None
