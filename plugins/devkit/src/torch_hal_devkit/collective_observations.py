"""What the processes of a run observe of collectives on chosen objects and tensors; see :mod:`.observations`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_hal import Runtime
from torch_hal.strategies import REDUCTIONS
from torch_hal_devkit.worker import Journal

__all__ = [
    "GATHERED",
    "REDUCED",
    "REFUSED",
    "SUMMED",
    "observe_objects",
    "observe_tensors",
    "own",
    "reduced",
    "save_below_a_file",
]

REDUCED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64}

GATHERED: dict[str, Callable[[int], Tensor]] = {
    "vector": lambda rank: torch.tensor([1.5, 2.5, -3.5]) + 10 * rank,
    "scalar": lambda rank: torch.tensor(2.0 + rank),
    "matrix": lambda rank: torch.arange(6.0).reshape(2, 3) - rank,
    "transposed": lambda rank: (torch.arange(6.0).reshape(2, 3) * (rank + 1)).t(),
    "empty": lambda rank: torch.empty(0, 2),
    "whole numbers": lambda rank: torch.tensor([2**40 + rank, -rank]),
    "truth values": lambda rank: torch.tensor([rank % 2 == 0, True]),
    "16 bits": lambda rank: torch.tensor([3e38, 1.0078125 + rank], dtype=torch.bfloat16),
}
"""By name, the tensor of a rank."""

SUMMED: dict[str, Callable[[int], Tensor]] = {
    "transposed": lambda rank: (torch.arange(6.0).reshape(2, 3) * (rank + 1)).t(),
    "part of another": lambda rank: torch.arange(12.0)[rank::5][:2],
    "empty": lambda rank: torch.empty(0, 2),
    "large whole numbers": lambda rank: torch.tensor([2**40 + rank, -(2**53) - 1 - rank, 2**24 + 1]),
    "not finite": lambda rank: torch.tensor([math.nan if rank == 0 else 1.0, math.inf, 1.0]),
}
"""By name, the tensor of a rank that is summed, although it is unusual."""

REFUSED: dict[str, Callable[[int], Tensor]] = {
    "shapes": lambda rank: torch.zeros(2 + rank),
    "numbers of dimensions": lambda rank: torch.zeros([1] * (1 + rank)),
    "dtypes": lambda rank: torch.zeros(2, dtype=torch.float32 if rank == 0 else torch.int64),
}
"""Tensors that differ between processes."""


def reduced(rank: int) -> Tensor:
    """The tensor of a rank that is reduced: integers, small enough for 16 bits."""
    return torch.tensor([rank + 1, 2 - rank, 3, -2, -1 if rank == 0 else 2, 0])


def own(rank: int) -> dict[Any, Any]:
    """The object of a rank that is broadcast and gathered."""
    return {"rank": rank, "values": ["a", None, 1.5] * (1 + 3 * rank), "pair": (2**60 + rank, b"\x00"), 7: {rank}}


def observe_objects(journal: Journal, runtime: Runtime) -> None:
    """Exchange objects of very different sizes, and wait for each other."""
    strategy, rank, size = runtime.strategy, runtime.process_index, runtime.num_processes
    for source in range(size):
        journal.observe(f"broadcast from {source}", lambda source=source: repr(strategy.broadcast(own(rank), source)))
    journal.observe("all_gather_object", lambda: [repr(found) for found in strategy.all_gather_object(own(rank))])
    journal.observe("barrier", _barrier, runtime, strategy.barrier)
    journal.observe("main process first", _main_process_first, runtime)


def _barrier(runtime: Runtime, barrier: Callable[[], None]) -> tuple[float, float]:
    """When this process reached the barrier, and when it left it; the last process is late."""
    if runtime.process_index == runtime.num_processes - 1:
        time.sleep(0.4)
    before = time.time()
    barrier()
    return before, time.time()


def _main_process_first(runtime: Runtime) -> tuple[float, float]:
    """When this process was in the block; the main process stays a while."""
    with runtime.main_process_first():
        before = time.time()
        if runtime.is_main_process:
            time.sleep(0.2)
        after = time.time()
    return before, after


def observe_tensors(journal: Journal, runtime: Runtime) -> None:
    """Reduce and gather tensors, of which some differ between processes."""
    strategy, rank, device = runtime.strategy, runtime.process_index, runtime.device
    unsupported = strategy.accelerator.unsupported
    for name, dtype in REDUCED.items():
        for reduction in REDUCTIONS if name not in unsupported else ():
            journal.observe(f"reduce {reduction} {name}", _reduce, runtime, reduced(rank).to(device, dtype), reduction)
    journal.observe("reduce scalar", _reduce, runtime, torch.tensor(rank + 1.0, device=device), "sum")
    for name, tensor in SUMMED.items():
        journal.observe(f"reduce {name}", _reduce, runtime, tensor(rank).to(device), "sum")
    journal.observe("reduce average", _reduce, runtime, torch.ones(2, device=device), "average")
    for name, tensor in GATHERED.items():
        if str(tensor(rank).dtype).removeprefix("torch.") in unsupported:
            continue
        journal.observe(f"all_gather {name}", _all_gather, runtime, tensor(rank).to(device))
    for name, tensor in REFUSED.items():
        journal.observe(f"all_gather {name}", _all_gather, runtime, tensor(rank).to(device))
        journal.observe(f"reduce {name}", _reduce, runtime, tensor(rank).to(device), "sum")
    journal.observe("all_gather afterwards", _all_gather, runtime, torch.tensor([rank], device=device))
    journal.observe("gather", _gather, runtime)


def _reduce(runtime: Runtime, tensor: Tensor, reduction: str) -> dict[str, Any]:
    before = tensor.clone()
    result = runtime.strategy.reduce(tensor, reduction)
    return {**_shown(result), "device": str(result.device), "untouched": torch.equal(tensor, before)}


def _all_gather(runtime: Runtime, tensor: Tensor) -> dict[str, Any]:
    return _shown(runtime.strategy.all_gather(tensor))


def _gather(runtime: Runtime) -> dict[str, Any]:
    rank = torch.tensor(runtime.process_index, device=runtime.device)
    gathered = runtime.gather(
        {"rows": (rank + torch.zeros(2, 1, device=runtime.device)), "scalars": [rank], "nothing": None}
    )
    return {
        "rows": gathered["rows"].tolist(),
        "scalars": gathered["scalars"][0].tolist(),
        "nothing": gathered["nothing"],
    }


def _shown(tensor: Tensor) -> dict[str, Any]:
    return {"values": tensor.cpu().tolist(), "dtype": str(tensor.dtype), "shape": list(tensor.shape)}


def save_below_a_file(runtime: Runtime, directory: str) -> None:
    """Save a checkpoint to a path that no process can write."""
    file = Path(directory, "a file")
    if runtime.is_main_process:
        file.touch()
    runtime.strategy.barrier()
    runtime.save({"step": 1}, file / "checkpoint")
