"""Checkpoints under URLs: what fsspec finds there, read by torch alone, is what was saved; only whole ones count."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pathlib
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from object_store import ObjectStore
from python_processes import run_python

from core import Runtime
from core.checkpoints import (
    AsyncCheckpointIO,
    CheckpointIO,
    SafetensorsCheckpointIO,
    ShardedCheckpointIO,
    TorchCheckpointIO,
    committed_file,
    is_committed,
    latest,
    local_copy,
    read_manifest,
    remove_committed,
)
from core.convert import convert
from core.errors import CheckpointError, ConfigurationError

URL = "objects://bucket/run"
IO = TorchCheckpointIO()
DIRECTORIES = ShardedCheckpointIO()
IOS: list[Callable[[], CheckpointIO]] = [
    TorchCheckpointIO,
    ShardedCheckpointIO,
    AsyncCheckpointIO,
    SafetensorsCheckpointIO,
]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    folder = tmp_path / "objects"
    folder.mkdir()
    monkeypatch.setenv("OBJECT_STORE", str(folder))
    monkeypatch.chdir(tmp_path)
    (tmp_path.parent / f"{tmp_path.name}-own").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent / f"{tmp_path.name}-own"))
    return ObjectStore()


def state(number: int) -> dict[str, Any]:
    return {"rows": torch.arange(6.0) + number, "step": number}


def save(number: int, url: str = f"{URL}/c", io: CheckpointIO = IO) -> None:
    io.save_checkpoint(state(number), url)
    io.wait()


@pytest.mark.parametrize("kind", IOS)
@pytest.mark.parametrize("scheme", ["objects", "memory"])
def test_what_is_there_is_what_was_saved(kind: Callable[[], CheckpointIO], scheme: str, tmp_path: Path) -> None:
    """Read by fsspec, hashlib and torch.load; one save is left of three, and nothing in the working directory."""
    url, files, own = f"{scheme}://bucket/run/c", fsspec.filesystem(scheme), kind()
    for number in range(3):
        save(number, url, own)
    found = {name.rpartition("/")[2]: files.cat_file(name) for name in files.find("bucket/run")}
    if kind in (TorchCheckpointIO, AsyncCheckpointIO):
        assert list(found) == ["c"]
        content = torch.load(io.BytesIO(found["c"]), weights_only=True)
    else:
        records = json.loads(found["manifest.json"])["files"]
        assert sorted(found) == sorted([*records, "manifest.json"])
        assert {name: record["crc32"] for name, record in records.items()} == {
            name: f"{zlib.crc32(found[name]):08x}" for name in records
        }
        content = torch.load(io.BytesIO(found["shard-00000.pt"]), weights_only=True)["content"]
    assert content["step"] == 2
    if kind is not SafetensorsCheckpointIO:
        assert torch.equal(content["rows"], torch.arange(6.0) + 2)
    loaded = own.load_checkpoint(url)
    assert torch.equal(loaded["rows"], state(2)["rows"])
    assert read_manifest(url).sequence == 3
    assert latest(f"{scheme}://bucket/run") == url
    own.remove_checkpoint(url)
    assert (files.find("bucket/run"), is_committed(url)) == ([], False)
    assert os.listdir(tmp_path) == ["objects"]


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    save(1, f"file://{tmp_path}/c")
    assert torch.load(tmp_path / "c", weights_only=True)["step"] == 1
    assert latest(f"file://{tmp_path}") == tmp_path / "c"


@pytest.mark.parametrize("kind", [TorchCheckpointIO, ShardedCheckpointIO])
def test_copies_by_other_tools_are_read(kind: Callable[[], CheckpointIO], store: ObjectStore, tmp_path: Path) -> None:
    """A checkpoint of a disk that was uploaded, and one that was downloaded."""
    own, url = kind(), f"{URL}/uploaded"
    save(1, str(tmp_path / "c"), own)
    parts = sorted((tmp_path / "c").iterdir()) if (tmp_path / "c").is_dir() else []
    for file in parts or [tmp_path / "c"]:
        store.put_file(str(file), f"bucket/run/uploaded/{file.name}" if parts else "bucket/run/uploaded")
    assert own.load_checkpoint(url)["step"] == 1
    assert latest(URL) == url
    save(2, url, own)
    assert len(store.find("bucket")) == max(len(parts), 1)  # the new one has replaced it
    (tmp_path / "down").mkdir()
    for name in store.find("bucket/run/uploaded"):
        store.get_file(name, str(tmp_path / "down" / name.rpartition("/")[2]))
    assert own.load_checkpoint(tmp_path / "down" / ("" if parts else "uploaded"))["step"] == 2


def killed_save(at: str, url: str, io: CheckpointIO) -> None:
    """Save in a process that is killed at the end of the upload of a file."""
    child = os.fork()
    if child == 0:
        os.environ["OBJECT_STORE_DIES"] = at
        try:
            save(9, url, io)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "at"),
    [(ShardedCheckpointIO, "manifest.json"), (ShardedCheckpointIO, "shard-00000.pt"), (TorchCheckpointIO, "")],
)
def test_a_save_that_is_killed_leaves_nothing_that_is_loaded(
    kind: Callable[[], CheckpointIO], at: str, store: ObjectStore
) -> None:
    own = kind()
    save(1, io=own)
    for name in ("c", "new"):
        killed_save(at or f"run/{name}", f"{URL}/{name}", own)
    before = len(store.find(f"{URL}/c"))
    assert (before > 2) == (at == "manifest.json")  # there are remains
    assert (own.load_checkpoint(f"{URL}/c")["step"], latest(URL), is_committed(f"{URL}/new")) == (1, f"{URL}/c", False)
    for file in store.folder.iterdir():
        os.utime(file, (1e9, 1e9))
    save(2, f"{URL}/d", own)  # remains that are a day old go
    assert {name.split("/")[2] for name in store.find(URL)} == {"c", "d"}
    assert len(store.find(f"{URL}/c")) == (2 if at else 1)
    assert own.load_checkpoint(f"{URL}/c")["step"] == 1
    assert not [*Path(tempfile.gettempdir()).glob(".core-tmp-*")]  # nor is anything left on this machine


class Server(MemoryFileSystem):  # type: ignore[misc]
    """A file system that shows a file while it is written, and can rename."""

    protocol = "server"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self.store[path2] = self.store.pop(path1)

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        content = Path(lpath).read_bytes()
        self.pipe_file(rpath, content[: len(content) // 2])
        if UPLOAD_ENDS:
            self.pipe_file(rpath, content)
        else:
            raise ConnectionError("the line is dead")


UPLOAD_ENDS: list[bool] = [True]


def test_a_server_whose_files_are_seen_while_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that ends halfway is not at the checkpoint's name."""
    fsspec.register_implementation("server", Server, clobber=True)
    save(1, "server://run/c")
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "UPLOAD_ENDS", [])
        with pytest.raises(CheckpointError, match="c cannot be written: ConnectionError: the line is dead"):
            save(2, "server://run/c")
    assert IO.load_checkpoint("server://run/c")["step"] == 1
    assert [name.rpartition("/")[2] for name in Server.store] == ["c"]


def test_a_read_during_a_save_gets_one_checkpoint(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is replaced between its manifest and its shard."""
    save(1, io=DIRECTORIES)
    get = ObjectStore.get_file
    done: list[str] = []

    def replace_first(self: Any, rpath: str, lpath: str, *args: Any, **kwargs: Any) -> None:
        if rpath.endswith(".pt") and not done:
            done.append(rpath)
            save(2, io=DIRECTORIES)
        get(self, rpath, lpath, *args, **kwargs)

    monkeypatch.setattr(ObjectStore, "get_file", replace_first)
    loaded = DIRECTORIES.load_checkpoint(f"{URL}/c")
    assert (loaded["step"], loaded["rows"][0].item(), len(done)) == (2, 2.0, 1)


def test_a_list_that_misses_a_checkpoint_is_asked_for_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is made while another process replaces the checkpoint may have neither the old one nor the new one."""
    save(1, io=DIRECTORIES)
    find = ObjectStore.find
    calls: list[str] = []

    def miss_first(self: Any, path: str, **options: Any) -> Any:
        calls.append(path)
        return find(self, path, **options) if len(calls) != 3 else {}

    monkeypatch.setattr(ObjectStore, "find", miss_first)
    assert DIRECTORIES.load_checkpoint(f"{URL}/c")["step"] == 1
    assert len(calls) > 3


def test_a_full_temporary_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which disk it is."""
    save(1)

    def fail(self: Any, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ObjectStore, "get_file", fail)
    with pytest.raises(CheckpointError, match=rf"No space left.* are copied to {tempfile.gettempdir()}: .*by TMPDIR"):
        IO.load_checkpoint(f"{URL}/c")


def test_damage_is_found_and_named(store: ObjectStore) -> None:
    """The error names the URL and the newest other one; "last" ignores a manifest that is cut off."""
    save(1, f"{URL}/a", DIRECTORIES)
    save(2, f"{URL}/b", DIRECTORIES)
    shard, manifest = sorted(store.find(f"{URL}/b"))[::-1]
    content = store.cat_file(shard)
    store.pipe_file(shard, content[:-30] + bytes([content[-30] ^ 1]) + content[-29:])
    with pytest.raises(CheckpointError, match=rf"{URL}/b/shard-00000.pt is damaged.*The newest whole .* is {URL}/a\."):
        DIRECTORIES.load_checkpoint(f"{URL}/b")
    store.pipe_file(shard, content[:-1])
    assert latest(URL) == f"{URL}/a"
    store.pipe_file(shard, content)
    store.pipe_file(manifest, store.cat_file(manifest)[:100])
    assert latest(URL) == f"{URL}/a"
    store.rm_file(shard)
    with pytest.raises(CheckpointError, match="damaged"):
        DIRECTORIES.load_checkpoint(f"{URL}/b")


def test_damage_of_one_file_is_found_and_named(store: ObjectStore) -> None:
    """The same for a checkpoint of one file; what another process has put there meanwhile is read instead."""
    save(1, f"{URL}/a")
    save(2, f"{URL}/b")
    content = store.cat_file("bucket/run/b")
    store.pipe_file("bucket/run/b", content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    with pytest.raises(CheckpointError, match=rf"{URL}/b is damaged.*The newest whole .* is {URL}/a\."):
        IO.load_checkpoint(f"{URL}/b")
    store.pipe_file("bucket/run/b", content[:1000])
    assert latest(URL) == f"{URL}/a"
    store.pipe_file("bucket/run/b", content)
    assert latest(URL) == f"{URL}/b"


def test_a_store_that_does_not_answer(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint may be whole: no older one is taken instead."""
    save(1, f"{URL}/a", DIRECTORIES)
    save(2, f"{URL}/b", DIRECTORIES)
    get_file = ObjectStore.get_file

    def fails(self: ObjectStore, remote: str, local: str, **options: Any) -> None:
        if "/b/" in remote:
            raise TimeoutError("no answer")
        get_file(self, remote, local, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "get_file", fails)
        with pytest.raises(CheckpointError, match=rf"{URL}/b cannot be read: TimeoutError: no answer"):
            latest(URL)
    assert latest(URL) == f"{URL}/b"


def test_only_what_the_manifest_lists_is_copied(store: ObjectStore) -> None:
    """Neither another object, nor one that is larger than it was, nor one outside of the copy."""
    save(1, io=DIRECTORIES)
    manifest = min(store.find(URL))
    store.pipe_file(manifest.replace("manifest.json", "large.bin"), b"0" * 1000)
    with local_copy(f"{URL}/c") as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "shard-00000.pt"]
    good = json.loads(store.cat_file(manifest))
    for name in ("../escaped", "/tmp/escaped", "large.bin"):
        files = {**good["files"], name: {"size": 1000 if name[0] != "l" else 10, "crc32": "0" * 8}}
        rest = {**{key: value for key, value in good.items() if key != "sha256"}, "files": files}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        content = {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        store.pipe_file(manifest, json.dumps(content).encode())
        with pytest.raises(CheckpointError, match="is damaged"), local_copy(f"{URL}/c"):
            pass


def test_what_is_not_a_checkpoint_stays(store: ObjectStore) -> None:
    store.pipe_file("bucket/run/c/notes.txt", b"mine")
    with pytest.raises(CheckpointError, match="a folder, but not a checkpoint of several files, and was left"):
        save(1, io=DIRECTORIES)
    with pytest.raises(CheckpointError, match="a folder, but not a file, and was left unchanged"):
        save(1)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        remove_committed(f"{URL}/c")
    with pytest.raises(CheckpointError, match="a file, but not a checkpoint of several files"):
        save(1, f"{URL}/c/notes.txt", DIRECTORIES)
    assert store.find(URL) == ["bucket/run/c/notes.txt"]


def test_a_bucket_may_be_a_checkpoint(store: ObjectStore) -> None:
    """All buckets together cannot be listed, so there is nothing next to it. No bucket is a file."""
    url = "objects://bucket"
    with pytest.raises(CheckpointError, match="path='objects://bucket' has no file name"):
        save(1, url)
    for number in (1, 2):
        save(number, url, DIRECTORIES)
    assert (DIRECTORIES.load_checkpoint(url)["step"], read_manifest(url).sequence, len(store.find(url))) == (2, 2, 2)
    shard = max(store.find(url))
    store.pipe_file(shard, store.cat_file(shard)[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"objects://bucket/shard-00000.pt is damaged"):
        DIRECTORIES.load_checkpoint(url)
    remove_committed(url)
    assert store.find(url) == []


def test_single_files(store: ObjectStore) -> None:
    """``committed_file``, ``local_copy`` and the files of other programs."""
    with committed_file(f"{URL}/x.json") as file:
        file.write_text("{}")
    with local_copy(f"{URL}/x.json") as file:
        assert (file.name, file.read_text()) == ("x.json", "{}")
    save(3)
    assert convert(f"{URL}/c") == f"{URL}/c.pt"
    assert torch.load(io.BytesIO(store.cat_file(f"{URL}/c.pt")), weights_only=True)["step"] == 3
    with Runtime(accelerator="cpu", devices=1) as runtime:
        runtime.save_model(runtime.prepare(torch.nn.Linear(2, 2)), f"{URL}/model", safe_serialization=False)
    assert store.find(f"{URL}/model") == ["bucket/run/model/pytorch_model.bin"]


def test_a_file_of_another_format_reads_nothing_next_to_it(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name decides where it goes; only a checkpoint needs the numbers of the others."""
    save(1)
    read: list[str] = []
    cat = ObjectStore.cat_file

    def noted(self: ObjectStore, path: str, *args: Any, **options: Any) -> bytes:
        read.append(path)
        return cat(self, path, *args, **options)

    monkeypatch.setattr(ObjectStore, "cat_file", noted)
    with committed_file(f"{URL}/x.json") as file:
        file.write_text("{}")
    assert read == []
    save(2, f"{URL}/d")
    assert [path.rpartition("/")[2] for path in read] == ["c"]  # the other file is too short for a checkpoint
    assert read_manifest(f"{URL}/d").sequence == 2


def test_the_state_of_a_run(store: ObjectStore) -> None:
    """``save_state`` with numbered names and a limit; ``load_state`` finds the newest."""

    def begin() -> tuple[Runtime, Any]:
        runtime = Runtime(accelerator="cpu", devices=1, project_dir=URL)
        runtime.project_configuration.automatic_checkpoint_naming = True
        runtime.project_configuration.total_limit = 2
        return runtime, runtime.prepare(torch.nn.Linear(2, 1))

    runtime, module = begin()
    with runtime, torch.no_grad():
        for number in range(4):
            module.weight.fill_(number)
            assert runtime.save_state() == f"{URL}/checkpoints/checkpoint_{number}"
    assert {name.split("/")[3] for name in store.find(URL)} == {"checkpoint_2", "checkpoint_3"}
    runtime, module = begin()
    with runtime:
        runtime.load_state()
        assert module.weight[0, 0].item() == 3
        assert runtime.project_configuration.iteration == 4


def test_errors_say_what_to_install_and_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"leaves of a URL. Pass the URL as a string: 's3://b/c'"):
        IO.load_checkpoint(pathlib.Path("s3://b/c"))
    with pytest.raises(CheckpointError, match="Protocol not known: nowhere"):
        save(1, "nowhere://b/c")
    with pytest.raises(CheckpointError, match="is not a committed checkpoint"):
        IO.load_checkpoint(f"{URL}/c")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    for action in (lambda: save(1, "s3://b/c"), lambda: IO.load_checkpoint("s3://b/c"), lambda: latest("s3://b")):
        with pytest.raises(ConfigurationError, match=r"'s3://b.* is a URL, .*pip install fsspec"):
            action()
    assert os.listdir(tmp_path) == ["objects"]


def test_a_failed_upload_leaves_the_previous_one(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(1)
    before = store.find(URL)

    def fail(self: Any, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(ObjectStore, "put_file", fail)
    with pytest.raises(CheckpointError, match=rf"{URL}/c cannot be written: PermissionError: Access Denied. Check"):
        save(2)
    assert (store.find(URL), IO.load_checkpoint(f"{URL}/c")["step"]) == (before, 1)


SCRIPT = Path(__file__).parent / "scripts" / "shards_of_processes.py"
HELPERS = str(Path(__file__).parents[1] / "helpers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "sizes"),
    [
        ("save", (2,)),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in [("save", (4,)), ("save-async", ())]),
    ],
)
def test_shards_of_three_processes(action: str, sizes: tuple[int, ...], store: ObjectStore, tmp_path: Path) -> None:
    """Each uploads its own; one, two and four processes load them; a process that is killed leaves the previous one."""
    env = {"HELPERS": HELPERS}
    url, rows = f"{URL}/sharded", torch.arange(140.0).reshape(7, 20)
    run_python(SCRIPT, action, 3, url, cwd=tmp_path, env=env)
    names = {name.rpartition("/")[2] for name in store.find(URL)}
    assert names >= {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata", "manifest.json", "shard-00000.pt"}
    assert torch.equal(ShardedCheckpointIO().load_checkpoint(url)["rows"], rows)
    for size in sizes:
        run_python(SCRIPT, "load", size, url, cwd=tmp_path, env=env)
        said = json.loads((tmp_path / "said.json").read_text())
        assert torch.equal(torch.tensor([row for part in said["rows"] for row in part]), rows)
    before = read_manifest(url).sequence
    dies = {**env, "OBJECT_STORE_DIES": "manifest.json"}
    assert run_python(SCRIPT, action, 3, url, cwd=tmp_path, env=dies, expect=None).returncode
    assert read_manifest(url).sequence == before
    assert torch.equal(ShardedCheckpointIO().load_checkpoint(url)["rows"], rows)


@pytest.mark.exhaustive
def test_a_store_that_not_all_processes_reach(tmp_path: Path) -> None:
    """``memory://`` belongs to one process: rank 0 refuses to commit."""
    done = run_python(SCRIPT, "save", 2, "memory://c", cwd=tmp_path, expect=1, env={"HELPERS": HELPERS})
    assert "Rank 0 does not see a file that was uploaded. Use a store that all processes reach" in done.stderr
