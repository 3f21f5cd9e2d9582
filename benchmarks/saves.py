"""Measures saves and loads against torch's own, how long a save blocks the training thread, and its memory.

    python benchmarks/saves.py            # prints the tables
    python benchmarks/saves.py --write    # writes them to docs/performance.md and docs/checkpoints.md

All ways save the same state and take turns in each round, so that a busy machine affects them alike; ratios are medians
of those of the rounds. A write in the background is waited for before the next save. ``torch.save`` syncs its file to
disk, as torch-hal does. Lightning's AsyncCheckpointIO takes part if it is installed. The exit code is 1 if an
asynchronous save blocks training for too long.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pages import write_between
from torch.distributed import HashStore  # type: ignore[attr-defined]

from core import Runtime
from core.checkpoints import (
    AsyncCheckpointIO,
    CheckpointIO,
    SafetensorsCheckpointIO,
    ShardedCheckpointIO,
    TorchCheckpointIO,
    latest,
)
from core.checkpoints.directories import set_number

DOCS = Path(__file__).parents[1] / "docs"
BAR = 0.15
"""The share of the synchronous save that an asynchronous one may block the training thread."""
BASE, OURS = "checkpoint_io='torch'", "checkpoint_io='async'"
TENSORS = 100
IO = TorchCheckpointIO()

Save = Callable[[dict[str, Any], Path], Callable[[], object]]
"""Begins a save, and returns what waits for its end."""
Times = Mapping[str, list[tuple[float, float]]]
"""By way: of each round, seconds until the call returned, and until what it began was done."""


def state_of(megabytes: int) -> dict[str, Any]:
    """A module's and an optimizer's state, of that size."""
    numbers = megabytes * 1_000_000 // 4 // TENSORS
    return {"state_dict": {f"layer{index}.weight": torch.randn(numbers) for index in range(TENSORS)}, "epoch": 3}


def with_io(io: CheckpointIO) -> Save:
    def save(state: dict[str, Any], path: Path) -> Callable[[], object]:
        io.save_checkpoint(state, path)
        return io.wait

    return save


def with_torch(state: dict[str, Any], path: Path) -> Callable[[], object]:
    with path.open("wb") as file:
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


def with_dcp_at_once(state: dict[str, Any], path: Path) -> Callable[[], object]:
    from torch.distributed.checkpoint.state_dict_saver import save

    save(state, checkpoint_id=path, no_dist=True)
    return lambda: None


def with_safetensors(state: dict[str, Any], path: Path) -> Callable[[], object]:
    from safetensors.torch import save_file

    save_file(state["state_dict"], path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return lambda: None


def with_lightning(state: dict[str, Any], path: Path) -> Callable[[], object]:
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO as Inner
    from lightning.pytorch.plugins.io import AsyncCheckpointIO as Outer

    io = Outer(Inner())
    io.save_checkpoint(state, path)
    return lambda: io.teardown()


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
        found["Lightning's AsyncCheckpointIO"] = with_lightning
    return found


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def in_turn(actions: Mapping[str, Callable[[], Callable[[], object]]], rounds: int, path: Path) -> Times:
    """Times of each way; the first round is not counted, and every second one is in reverse order."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name in list(actions)[:: 1 if number % 2 else -1]:
            os.sync()
            begin = time.perf_counter()
            wait = actions[name]()
            blocked = time.perf_counter() - begin
            wait()
            whole = time.perf_counter() - begin
            if path.exists():
                remove(path)
            if number:
                found[name].append((blocked, whole))
    return found


def saves(names: Mapping[str, Save], megabytes: int, rounds: int, folder: Path) -> Times:
    state, path = state_of(megabytes), folder / "checkpoint"
    return in_turn({name: partial(save, state, path) for name, save in names.items()}, rounds, path)


# -- docs/checkpoints.md ---------------------------------------------------------------------------------------------


def extra_memory(name: str, megabytes: int, directory: str) -> float:
    """Memory that one save takes in addition to the state, as a multiple of the state; in a separate process."""
    save, path = ways()[name], Path(directory, "memory")
    save(state_of(1), path)()  # what is imported and started at the first save
    remove(path)
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
    remove(path)
    return (peak - before) / (megabytes * 1e6)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_background(megabytes: int, rounds: int, folder: Path) -> tuple[str, bool]:
    """The table of how long training waits, as Markdown; and whether that is short enough."""
    times = saves(ways(), megabytes, rounds, folder)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        memory = {name: pool.submit(extra_memory, name, megabytes, str(folder)).result() for name in times}
    blocked = {name: statistics.median(one for one, _ in taken) for name, taken in times.items()}
    rows = [
        f"A state of {megabytes} MB on {os.cpu_count()} cores, CPU, shared with other work (torch {torch.__version__}, "
        f"{date.today().isoformat()}); medians of {rounds} rounds:",
        "",
        "| way | training waits, s | of `'torch'` | committed after, s | extra memory, states |",
        "|---|---|---|---|---|",
    ]
    for name, taken in times.items():
        whole = statistics.median(one for _, one in taken)
        share = blocked[name] / blocked[BASE]
        rows.append(f"| {name} | {blocked[name]:.2f} | {share:.0%} | {whole:.2f} | {memory[name]:.2f} |")
    shares = [mine / whole for (mine, _), (whole, _) in zip(times[OURS], times[BASE], strict=True)]
    return "\n".join(rows), statistics.median(shares) <= BAR


# -- docs/performance.md ---------------------------------------------------------------------------------------------


def against_torch(megabytes: int, rounds: int, folder: Path) -> list[str]:
    path = folder / "ours"
    names = {
        "torch.save, synced": with_torch,
        "save, `'torch'`": with_io(IO),
        "torch's DCP `save`, synced by itself": with_dcp_at_once,
        "save, `'sharded'`": with_io(ShardedCheckpointIO()),
    }
    if importlib.util.find_spec("safetensors") is not None:
        in_format = with_io(SafetensorsCheckpointIO())
        names |= {"safetensors' `save_file`, synced": with_safetensors, "save, `'safetensors'`": in_format}
    rows = _rows(saves(names, megabytes, rounds, folder))
    with_torch(state_of(megabytes), folder / "theirs")
    IO.save_checkpoint(state_of(megabytes), path)

    def load(read: Callable[[], object]) -> Callable[[], object]:
        read()
        return lambda: None

    loads = {
        "torch.load": partial(load, lambda: torch.load(folder / "theirs", weights_only=True)),
        "load, verified": partial(load, lambda: IO.load_checkpoint(path)),
    }
    theirs, ours = into_a_model(megabytes, folder)
    into = {
        "torch.load, and `load_state_dict` of a module and Adam": partial(load, theirs),
        "`Runtime.load` into them, verified": partial(load, ours),
    }
    return [*rows, *(row for each in (loads, into) for row in _rows(in_turn(each, rounds, folder / "none")))]


def into_a_model(megabytes: int, folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    """What loads a module and an optimizer that are there, written by hand and with the Runtime."""
    size = int((megabytes * 1_000_000 / 12 / TENSORS) ** 0.5)  # Adam has twice the module's numbers
    runtime = Runtime(accelerator="cpu", devices=1)
    module = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(TENSORS)))
    model, optimizer = runtime.prepare(module, torch.optim.Adam(module.parameters()))
    runtime.backward(model(torch.randn(2, size)).square().mean())
    optimizer.step()
    parts: dict[str, Any] = {"module": model, "optimizer": optimizer}
    runtime.save(parts, folder / "parts")
    torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "by-hand")

    def by_hand() -> None:
        checkpoint = torch.load(folder / "by-hand", weights_only=True)
        module.load_state_dict(checkpoint["module"])
        optimizer.load_state_dict(checkpoint["optimizer"])

    return by_hand, lambda: runtime.load(folder / "parts", parts)


def _rows(times: Times) -> list[str]:
    wholes = {name: [whole for _, whole in taken] for name, taken in times.items()}
    base = next(iter(wholes.values()))
    return [
        f"| {name} | {statistics.median(whole):.2f} | "
        f"{statistics.median(one / other for one, other in zip(whole, base, strict=True)):.2f} |"
        for name, whole in wholes.items()
    ]


_IN_FOLDER = """
import sys, time, torch
from pathlib import Path
from core.checkpoints import TorchCheckpointIO, latest
folder, found = Path(sys.argv[1]), []
save = lambda name: TorchCheckpointIO().save_checkpoint({"weight": torch.zeros(4)}, folder / name)
TorchCheckpointIO().save_checkpoint({}, folder.parent / "imports")
for action in (lambda: latest(folder), lambda: save("a"), lambda: latest(folder), lambda: save("b")):
    begin = time.perf_counter(); action(); found.append(time.perf_counter() - begin)
print(*found)
"""


def among_many(number: int, rounds: int, folder: Path) -> str:
    """Measure a folder with ``number`` small checkpoints, in a separate process for each round; returns a table row."""
    many = folder / f"{number}"
    many.mkdir()
    IO.save_checkpoint({"weight": torch.zeros(4)}, folder / "one")
    for index in range(number):
        place = many / f"step={index}.ckpt"
        shutil.copyfile(folder / "one", place)
        set_number(place, index + 1)
    assert latest(many) == (many / f"step={number - 1}.ckpt" if number else None)
    taken = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", _IN_FOLDER, many], capture_output=True, text=True, check=True)
        taken.append([float(each) for each in done.stdout.split()])
    shutil.rmtree(many)
    cells = (f"{1000 * statistics.median(row):.0f}" for row in zip(*taken, strict=True))
    return f"| {number:,} | {' | '.join(cells)} |"


def performance(megabytes: int, rounds: int, numbers: list[int], folder: Path) -> str:
    """Both tables, as Markdown."""
    where = f"{os.cpu_count()} cores, torch {torch.__version__}, {date.today().isoformat()}, medians of {rounds} rounds"
    lines = [
        f"A state of {megabytes} MB in {TENSORS} tensors, on the disk of a virtual machine ({where}):",
        "",
        "| | seconds | of torch's |",
        "|---|---|---|",
        *against_torch(megabytes, rounds, folder),
        "",
        "Milliseconds in a folder with many small checkpoints, of one process:",
        "",
        "| checkpoints there | first `latest` | save | next `latest` | next save |",
        "|---|---|---|---|---|",
        *(among_many(number, rounds, folder) for number in numbers),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[315, 500], help="of each page's state (315 500)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[0, 1000, 10_000])
    parser.add_argument("--directory", type=Path, help="where to save; a temporary directory by default")
    parser.add_argument("--write", action="store_true", help="write the tables to the pages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        first = performance(options.megabytes[0], options.rounds, options.checkpoints, Path(name))
        second, is_short = in_background(options.megabytes[-1], options.rounds, Path(name))
    print(f"{first}\n\n{second}")
    if options.write:
        write_between(DOCS / "performance.md", "saves", first)
        write_between(DOCS / "checkpoints.md", "async saves", second)
    return int(not is_short)


if __name__ == "__main__":
    sys.exit(main())
