"""Measures how long a save blocks the training thread, and how much memory it takes.

    python benchmarks/async_save.py                       # a state of 500 MB, in a temporary directory
    python benchmarks/async_save.py --directory /fast --write docs/checkpoints.md

All ways save the same state, one after another in each round, so that a busy machine affects them alike. A write in the
background is waited for before the next save. ``torch.save`` syncs its file to disk, as torch-hal does. Lightning's
AsyncCheckpointIO takes part if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pages import write_between
from torch.distributed import HashStore  # type: ignore[attr-defined]

from core.checkpoints import AsyncCheckpointIO, CheckpointIO, ShardedCheckpointIO, TorchCheckpointIO

BAR = 0.15
"""The share of the synchronous save that an asynchronous one may block the training thread."""
BASE = "checkpoint_io='torch'"
OURS = "checkpoint_io='async'"
TENSORS = 100

Save = Callable[[dict[str, Any], Path], Callable[[], object]]
"""Begins a save, and returns what waits for its end."""


def state_of(megabytes: int) -> dict[str, Any]:
    """A module's and an optimizer's state, of that size."""
    numbers = megabytes * 1_000_000 // 4 // TENSORS
    return {"state_dict": {f"layer{index}.weight": torch.randn(numbers) for index in range(TENSORS)}, "epoch": 3}


def with_io(io: CheckpointIO) -> Save:
    """A CheckpointIO of torch-hal."""

    def save(state: dict[str, Any], path: Path) -> Callable[[], object]:
        io.save_checkpoint(state, path)
        return io.wait

    return save


def with_torch(state: dict[str, Any], path: Path) -> Callable[[], object]:
    """One file, by torch alone."""
    path.mkdir()
    with (path / "state.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return lambda: None


def with_dcp(state: dict[str, Any], path: Path) -> Callable[[], object]:
    """torch.distributed.checkpoint in the background."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    future: Any = async_save(state, checkpoint_id=path)
    return lambda: future.result()


def with_lightning() -> Save:
    """Lightning's CheckpointIO in the background."""
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO as Inner
    from lightning.pytorch.plugins.io import AsyncCheckpointIO as Outer

    def save(state: dict[str, Any], path: Path) -> Callable[[], object]:
        io = Outer(Inner())
        io.save_checkpoint(state, path)
        return lambda: io.teardown()

    return save


def ways() -> dict[str, Save]:
    """What is compared, by name."""
    found = {
        "torch.save": with_torch,
        BASE: with_io(TorchCheckpointIO()),
        OURS: with_io(AsyncCheckpointIO()),
        "checkpoint_io='sharded'": with_io(ShardedCheckpointIO()),
        "async around sharded": with_io(AsyncCheckpointIO(ShardedCheckpointIO())),
        "torch's DCP async_save": with_dcp,
    }
    if importlib.util.find_spec("lightning") is not None:
        found["Lightning's AsyncCheckpointIO"] = with_lightning()
    return found


Figures = dict[str, dict[str, list[float]]]


def measure(megabytes: int, rounds: int, directory: Path) -> Figures:
    """Seconds blocked and in total, for each way and round; the first round is not counted."""
    state, found = state_of(megabytes), ways()
    figures: Figures = {name: {"blocked": [], "whole": []} for name in found}
    for number in range(rounds + 1):
        for name, save in found.items():
            path = directory / "checkpoint"
            os.sync()
            start = time.perf_counter()
            wait = save(state, path)
            blocked = time.perf_counter() - start
            wait()
            whole = time.perf_counter() - start
            _remove(path)
            if number:
                figures[name]["blocked"].append(blocked)
                figures[name]["whole"].append(whole)
            sys.stderr.write(f"{number} {name}: {blocked:.2f} s of {whole:.2f} s\n")
    return figures


def extra_memory(name: str, megabytes: int, directory: str) -> float:
    """Memory that one save takes in addition to the state, as a multiple of the state; in a separate process."""
    save, path = ways()[name], Path(directory, "memory")
    save(state_of(1), path)()  # what is imported and started at the first save
    _remove(path)
    state = state_of(megabytes)
    before = peak = _resident()
    ends = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ends.wait(0.005):
            peak = max(peak, _resident())

    thread = threading.Thread(target=watch)
    thread.start()
    save(state, path)()
    ends.set()
    thread.join()
    _remove(path)
    return (peak - before) / (megabytes * 1e6)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def table(figures: Figures, memory: dict[str, float], megabytes: int) -> str:
    """As Markdown."""
    base = statistics.median(figures[BASE]["blocked"])
    rows = [
        f"A state of {megabytes} MB on {os.cpu_count()} cores, CPU, shared with other work (torch {torch.__version__}, "
        f"{date.today().isoformat()}); medians of {len(figures[BASE]['blocked'])} rounds:",
        "",
        "| way | training waits, s | of `'torch'` | committed after, s | extra memory, states |",
        "|---|---|---|---|---|",
    ]
    for name, times in figures.items():
        blocked, whole = (statistics.median(times[key]) for key in ("blocked", "whole"))
        rows.append(f"| {name} | {blocked:.2f} | {blocked / base:.0%} | {whole:.2f} | {memory[name]:.2f} |")
    return "\n".join(rows)


def main() -> int:
    """Measure, print the table; exit code 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to save; a temporary directory by default")
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        figures = measure(options.megabytes, options.rounds, Path(folder))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
            memory = {name: pool.submit(extra_memory, name, options.megabytes, folder).result() for name in figures}
    text = table(figures, memory, options.megabytes)
    print(text)
    if options.write:
        write_between(options.write, "async saves", text)
    shares = [mine / whole for mine, whole in zip(figures[OURS]["blocked"], figures[BASE]["blocked"], strict=True)]
    return int(statistics.median(shares) > BAR)


if __name__ == "__main__":
    sys.exit(main())
