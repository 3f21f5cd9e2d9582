"""Faults of file systems: each is a CheckpointError with path and remedy, and the previous checkpoint stays whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from declared import PREFIX

from core import Runtime
from core.checkpoints import CheckpointIO, TorchCheckpointIO, is_committed
from core.convert import convert
from core.errors import CheckpointError

from .small import IOS

LARGE: dict[str, Any] = {"x": torch.arange(500_000.0), "n": 2}
OLD: dict[str, Any] = {"x": torch.arange(10.0), "n": 1}


@pytest.fixture(params=["torch", "sharded", "async", "safetensors"])
def io(request: pytest.FixtureRequest) -> CheckpointIO:
    return IOS[request.param]()


def refused(io: CheckpointIO, state: Any, path: Path) -> str:
    """The message with which the save fails, now or in the background."""
    with pytest.raises(CheckpointError) as raised:
        save(io, state, path)
    assert str(path) in str(raised.value)
    return str(raised.value)


def save(io: CheckpointIO, state: Any, path: Path) -> None:
    io.save_checkpoint(state, path)
    io.teardown()


def mount(folder: Path, *options: str) -> None:
    """Mount a small file system, where this is allowed."""
    command = shutil.which("mount")
    if sys.platform != "linux" or command is None or os.geteuid() != 0:
        pytest.skip(f"{PREFIX}only root can mount a small file system")
    done = subprocess.run([command, *options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{PREFIX}no file system can be mounted here")


@pytest.fixture
def small_disk() -> Iterator[Callable[..., Path]]:
    """Mounts a file system with the given limits."""
    folder = Path(tempfile.mkdtemp())
    mounted = []

    def make(options: str) -> Path:
        mount(folder, "-t", "tmpfs", "-o", options, "none")
        mounted.append(folder)
        return folder

    yield make
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def test_a_full_disk(io: CheckpointIO, small_disk: Callable[..., Path]) -> None:
    """A disk of one megabyte: the message says to free space; after that, saving works again."""
    folder = small_disk("size=1m")
    save(io, OLD, folder / "c")
    message = refused(io, LARGE, folder / "c")
    assert "No space left" in message
    assert "Free space (or inodes) there, or save to another disk. An earlier checkpoint is unchanged." in message
    assert torch.equal(io.load_checkpoint(folder / "c")["x"], OLD["x"])
    assert os.listdir(folder) == ["c"]
    save(io, {"n": 3}, folder / "d")
    assert io.load_checkpoint(folder / "d") == {"n": 3}


def test_a_full_disk_and_a_new_directory(io: CheckpointIO, small_disk: Callable[..., Path]) -> None:
    """What was made for the checkpoint goes with it; what was there stays."""
    folder = small_disk("size=1m")
    (folder / "own").mkdir()
    for new in ("a/b/c", "own/c", "own/d/c"):
        refused(io, LARGE, folder / new)
    assert list(folder.rglob("*")) == [folder / "own"]


def test_no_inodes(io: CheckpointIO, small_disk: Callable[..., Path]) -> None:
    """A disk without room for another file."""
    folder = small_disk("size=5m,nr_inodes=12")
    save(io, OLD, folder / "c")
    for number in range(20):
        try:
            (folder / f"file{number}").touch()
        except OSError:
            break
    message = refused(io, OLD, folder / "d")
    assert "Free space (or inodes)" in message
    refused(io, OLD, folder / "c")
    assert io.load_checkpoint(folder / "c")["n"] == 1


def test_a_read_only_file_system(io: CheckpointIO, small_disk: Callable[..., Path]) -> None:
    """A disk that became read-only, as after an error of the disk: nothing can be saved or removed, all be read."""
    folder = small_disk("size=5m")
    save(io, OLD, folder / "c")
    mount(folder, "-o", "remount,ro")
    for path in (folder / "c", folder / "new", folder / "sub" / "new"):
        assert "Mount the file system for writing" in refused(io, OLD, path)
    with pytest.raises(CheckpointError, match="Mount the file system for writing"):
        io.remove_checkpoint(folder / "c")
    assert io.load_checkpoint(folder / "c")["n"] == 1
    mount(folder, "-o", "remount,rw")
    save(io, LARGE, folder / "c")
    assert io.load_checkpoint(folder / "c")["n"] == 2


def test_permission_is_lost(io: CheckpointIO) -> None:
    """The directory can no longer be written: the message says whose right is missing; nor can files be read."""
    parent = Path(tempfile.mkdtemp())
    folder = parent / "folder"
    folder.mkdir()
    save(io, OLD, folder / "c")
    parent.chmod(0o755)
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        assert "Give this user the right" in refused(io, OLD, folder / "c")
        assert io.load_checkpoint(folder / "c")["n"] == 1
        with pytest.raises(CheckpointError, match="Give this user the right"):
            io.remove_checkpoint(folder / "c")
    finally:
        if is_root:
            os.seteuid(0)
    (folder / "c" / "manifest.json" if (folder / "c").is_dir() else folder / "c").chmod(0)
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            io.load_checkpoint(folder / "c")
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(parent)


def test_no_file_can_be_opened(io: CheckpointIO, tmp_path: Path) -> None:
    """A script that leaves files open: neither saves nor loads, says what to do, and the checkpoint is whole."""
    resource = pytest.importorskip("resource")
    save(io, OLD, tmp_path / "c")
    save(io, OLD, tmp_path / "other")  # has imported what it needs
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    held = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        assert "raise the limit of open files (ulimit -n)" in refused(io, LARGE, tmp_path / "c")
        with pytest.raises(CheckpointError, match=r"Too many open files.*ulimit -n"):
            io.load_checkpoint(tmp_path / "c")
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert io.load_checkpoint(tmp_path / "c")["n"] == 1
    assert sorted(os.listdir(tmp_path)) == ["c", "other"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ESTALE, "Check its server and its mount."),
        (errno.EDQUOT, "Free space in your quota, or save to another disk."),
    ],
)
def test_an_answer_of_a_server(
    io: CheckpointIO, number: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system that has lost a file, or whose quota is used up, may say so only when all is to be kept."""
    save(io, OLD, tmp_path / "c")

    def fails(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        assert f"{remedy} An earlier checkpoint is unchanged." in refused(io, LARGE, tmp_path / "c")
    assert io.load_checkpoint(tmp_path / "c")["n"] == 1
    assert os.listdir(tmp_path) == ["c"]
    save(io, LARGE, tmp_path / "c")
    assert io.load_checkpoint(tmp_path / "c")["n"] == 2


def test_a_limit_on_the_size_of_files(io: CheckpointIO, tmp_path: Path) -> None:
    """The write stops in the middle of a file: the remedy is named, and with a higher limit saving works again."""
    resource = pytest.importorskip("resource")
    save(io, OLD, tmp_path / "c")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        message = refused(io, LARGE, tmp_path / "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (
        "Raise the limit on the size of files, or save to another disk. An earlier checkpoint is unchanged." in message
    )
    assert io.load_checkpoint(tmp_path / "c")["n"] == 1
    assert os.listdir(tmp_path) == ["c"]
    save(io, LARGE, tmp_path / "c")
    assert io.load_checkpoint(tmp_path / "c")["n"] == 2


@pytest.mark.parametrize("what", ["convert", "save", "save_model", "save_state"])
def test_a_single_file_that_does_not_fit(what: str, tmp_path: Path) -> None:
    """The error names path, cause and remedy instead of torch's internal message, and no partial file is left."""
    resource = pytest.importorskip("resource")
    runtime = Runtime(accelerator="cpu", devices=1)
    layer = runtime.prepare(torch.nn.Linear(500, 500))
    runtime.save({"layer": layer}, tmp_path / "c")
    writes: dict[str, Callable[[], object]] = {
        "convert": lambda: convert(tmp_path / "c", tmp_path / "new" / "all.pt"),
        "save": lambda: runtime.save(layer.state_dict(), tmp_path / "new" / "all.pt"),
        "save_model": lambda: runtime.save_model(layer, tmp_path / "new", safe_serialization=False),
        "save_state": lambda: runtime.save_state(tmp_path / "new" / "all"),
    }
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        text = rf"{tmp_path}/new/(all|\w+\.)\S* cannot be written: .*File too large.* Raise the limit"
        with pytest.raises(CheckpointError, match=text):
            writes[what]()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "new").exists()
    writes[what]()
    (file,) = (tmp_path / "new").iterdir()
    assert is_committed(file) if what == "save_state" else torch.load(file, weights_only=True)


def test_the_directory_is_removed_during_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says that the directory has gone; the next save makes it again."""
    import core.checkpoints.torch_io as module

    original = module.write_shard

    def removes(*args: Any) -> Any:
        record = original(*args)
        shutil.rmtree(tmp_path / "run")
        return record

    io = TorchCheckpointIO()
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_shard", removes)
        assert "removed or moved during the save" in refused(io, OLD, tmp_path / "run" / "c")
    save(io, OLD, tmp_path / "run" / "c")
    assert is_committed(tmp_path / "run" / "c")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "async"])
def test_eight_writers_and_eight_readers(tmp_path: Path, name: str) -> None:
    """On one path: a reader gets a whole checkpoint or a CheckpointError, and no writer's error is another one."""
    save(TorchCheckpointIO(), {"x": torch.zeros(1000), "n": 0.0}, tmp_path / "c")
    deadline = time.monotonic() + 4

    def write(number: int) -> None:
        io = IOS[name]()
        while time.monotonic() < deadline:
            with suppress(CheckpointError):
                save(io, {"x": torch.full((1000,), float(number)), "n": float(number)}, tmp_path / "c")

    def read(number: int) -> None:
        reads = 0
        while time.monotonic() < deadline or not reads:
            try:
                loaded = TorchCheckpointIO().load_checkpoint(tmp_path / "c")
            except CheckpointError:
                continue
            assert loaded["x"].eq(loaded["n"]).all()
            reads += 1

    children = [fork(function, number) for number in range(8) for function in (write, read)]
    try:
        codes = [os.waitpid(child, 0)[1] for child in children]
    except BaseException:
        for child in children:
            os.kill(child, signal.SIGKILL)
        raise
    assert not any(codes)
    loaded = TorchCheckpointIO().load_checkpoint(tmp_path / "c")
    assert loaded["x"].eq(loaded["n"]).all()
    save(TorchCheckpointIO(), {"n": 9}, tmp_path / "c")
    assert [item for item in os.listdir(tmp_path) if "damaged" not in item] == ["c"]


def fork(function: Callable[[int], None], number: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(60)
        torch.set_num_threads(1)
        function(number)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)
