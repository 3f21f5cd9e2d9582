"""Three processes save sharded tensors to a disk that fails; ``said.json`` says what each was told."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from core import Runtime
from core.checkpoints import AsyncCheckpointIO, ShardedCheckpointIO, commit
from core.errors import CheckpointError
from core.strategies import DDPStrategy

OUT = Path(os.environ["OUT"])
SHARDED = ShardedCheckpointIO()
IO = SHARDED if sys.argv[1] == "sharded" else AsyncCheckpointIO(SHARDED)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
torch.set_num_threads(1)
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
runtime = Runtime(accelerator="cpu", strategy=DDPStrategy(checkpoint_io=IO), devices=3)
runtime.launch()
rank, strategy = runtime.process_index, runtime.strategy
mesh = init_device_mesh("cpu", (3,))
small = {"rows": distribute_tensor(torch.arange(14.0).reshape(7, 2), mesh, [Shard(0)])}
large = {"rows": distribute_tensor(torch.ones(7, 100_000), mesh, [Shard(0)])}
said: dict[str, list[str]] = {}


def save(state: dict[str, Any], path: Path) -> None:
    IO.save_checkpoint(state, path)
    IO.wait()


def told(function: Callable[[], object]) -> list[str]:
    """What the error of each process says; nothing of those that had none."""
    text = ""
    try:
        function()
    except CheckpointError as error:
        text = str(error)
    answers: list[str] = strategy.all_gather_object(text)
    return answers


@contextmanager
def file_sizes(limited: set[int]) -> Iterator[None]:
    """Files of these ranks cannot be large."""
    if rank in limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def no_more_files(ranks: set[int]) -> Iterator[None]:
    """These ranks have as many files open as they may."""
    held: list[int] = []
    if rank in ranks:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, FILES[1]))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, FILES)


@contextmanager
def stale(ranks: set[int]) -> Iterator[None]:
    """To these ranks, the server of a network file system answers that it has lost the file."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with mock.patch.object(os, "fsync", fsync) if rank in ranks else nothing():
        yield


@contextmanager
def without_rights(ranks: set[int]) -> Iterator[None]:
    """These ranks are another user's."""
    if rank in ranks:
        os.seteuid(65534)
    yield
    if rank in ranks:
        os.seteuid(0)


def mounted(options: str) -> Callable[[Path], None]:
    return lambda folder: mount(folder, "-t", "tmpfs", "-o", options, "none")


def mount(folder: Path, *options: str) -> None:
    subprocess.run(["mount", *options, str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    if rank == 0:
        mount(folder, "-o", "remount,ro")
    runtime.barrier()
    yield
    runtime.barrier()
    if rank == 0:
        mount(folder, "-o", "remount,rw")


@contextmanager
def no_inodes(folder: Path) -> Iterator[None]:
    files = [folder / f"file{number}" for number in range(50)]
    if rank == 0:
        with suppress(OSError):
            for file in files:
                file.touch()
    runtime.barrier()
    yield
    runtime.barrier()
    if rank == 0:
        for file in files:
            file.unlink(missing_ok=True)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def case(
    name: str, fault: Callable[[Path], Any], state: dict[str, Any], make: Callable[[Path], None] | None = None
) -> None:
    """Save, have a fault, save to the same path and to a new one; then the first one is whole, and saving works."""
    folder = OUT / name
    if rank == 0:
        folder.mkdir()
        folder.chmod(0o755)
        if make is not None:
            make(folder)
    runtime.barrier()
    assert told(lambda: save({"n": 1, **small}, folder / "c")) == [""] * 3
    with fault(folder):
        runtime.barrier()
        said[name] = told(lambda: save({"n": 2, **state}, folder / "c"))
        said[f"{name}, new"] = told(lambda: save({"n": 2, **state}, folder / "new"))
        runtime.barrier()
    runtime.barrier()
    read = SHARDED.load_shards(folder / "c", mesh, [Shard(0)])
    assert read["n"] == 1
    assert torch.equal(read["rows"].to_local(), small["rows"].to_local())
    assert told(lambda: save({"n": 3, **small}, folder / "c")) == [""] * 3
    assert SHARDED.load_checkpoint(folder / "c")["n"] == 3
    names = strategy.all_gather_object(sorted(os.listdir(folder)))[0]
    assert names == ["c"], names
    if make is not None and rank == 0:
        subprocess.run(["umount", str(folder)], check=True)


case("large files of rank 1", lambda folder: file_sizes({1}), large)
case("large files of all", lambda folder: file_sizes({0, 1, 2}), large)
case("no more files of rank 1", lambda folder: no_more_files({1}), small)
case("no more files of all", lambda folder: no_more_files({0, 1, 2}), small)
case("stale handle of rank 1", lambda folder: stale({1}), small)
case("stale handle of rank 0", lambda folder: stale({0}), small)
if len(sys.argv) > 2:  # root's
    case("full disk", lambda folder: nothing(), large, mounted("size=2m"))
    case("no inodes", no_inodes, small, mounted("size=5m,nr_inodes=24"))
    case("read-only", read_only, small, mounted("size=5m"))
    case("no right of rank 1", lambda folder: without_rights({1}), small)
    case("no right of all", lambda folder: without_rights({0, 1, 2}), small)

# The folder is removed while the processes write.
folder, sync_tree = OUT / "removed", commit._sync_tree


def remove_and_sync(directory: Path) -> None:
    shutil.rmtree(folder)
    sync_tree(directory)


save({"n": 1, **small}, folder / "c")
with mock.patch.object(commit, "_sync_tree", remove_and_sync):  # only process 0 calls it
    said["removed"] = told(lambda: save({"n": 2, **small}, folder / "c"))
assert told(lambda: save({"n": 3, **small}, folder / "c")) == [""] * 3
assert SHARDED.load_shards(folder / "c", mesh, [Shard(0)])["n"] == 3

# The folder is removed between two saves, and comes back on another disk.
save({"n": 1, **small}, OUT / "moved" / "c")
runtime.barrier()
if rank == 0:
    (OUT / "other").mkdir()
    shutil.move(OUT / "moved" / "c", OUT / "other" / "c")
    (OUT / "moved").rmdir()
runtime.barrier()
said["moved away"] = told(lambda: SHARDED.load_shards(OUT / "moved" / "c", mesh, [Shard(0)]))
assert SHARDED.load_shards(OUT / "other" / "c", mesh, [Shard(0)])["n"] == 1
assert told(lambda: save({"n": 2, **small}, OUT / "moved" / "c")) == [""] * 3
assert SHARDED.load_shards(OUT / "moved" / "c", mesh, [Shard(0)])["n"] == 2
if rank == 0:
    (OUT / "said.json").write_text(json.dumps(said))
runtime.barrier()
