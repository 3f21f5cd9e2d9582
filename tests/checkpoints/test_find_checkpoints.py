"""Finding committed checkpoints, the last one among them."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from manifest_files import manifest_bytes, write_manifest

from core.checkpoints import (
    CheckpointIO,
    ShardedCheckpointIO,
    TorchCheckpointIO,
    directories,
    is_committed,
    latest,
    local_store,
    locate,
    read_manifest,
)
from core.checkpoints import manifest as manifest_module
from core.checkpoints import store as store_module
from core.checkpoints.commit import set_aside_names
from core.checkpoints.directories import is_checkpoint, is_damaged
from core.checkpoints.local_store import LocalStore
from core.checkpoints.manifest import Manifest
from core.errors import CheckpointError

IO = TorchCheckpointIO()
DIRECTORIES = ShardedCheckpointIO()


def save(path: Path, io: CheckpointIO = IO) -> None:
    io.save_checkpoint({"x": torch.ones(10)}, path)


def claim_newer_format(path: Path) -> None:
    write_manifest(path, json.dumps(json.loads(manifest_bytes(path)) | {"format_version": 99}).encode())


def test_the_latest_is_the_one_saved_last(tmp_path: Path) -> None:
    """By the number in the manifest: neither names, times of the file system nor the format decide."""
    for name in ("step=9", "step=10", "b"):
        save(tmp_path / name)
    os.utime(tmp_path / "step=9")
    assert latest(tmp_path) == tmp_path / "b"
    save(tmp_path / "a", DIRECTORIES)
    (tmp_path / "step=9").touch()
    assert latest(tmp_path) == tmp_path / "a"
    save(tmp_path / "step=10")
    assert latest(str(tmp_path)) == tmp_path / "step=10"


def test_the_latest_among_none() -> None:
    """A directory that is empty, or not there yet, holds no latest."""
    assert latest("/nonexistent/directory") is None


def test_what_is_not_committed_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Foreign files and directories, hidden leftovers and damaged checkpoints; these with a warning."""
    assert latest(tmp_path) is None
    save(tmp_path / "good")
    (tmp_path / "file").touch()
    torch.save({"x": 1}, tmp_path / "by torch")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/1", "1")
        archive.comment = b"of another program"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.csv").touch()
    (tmp_path / ".git").mkdir()
    save(tmp_path / "without", DIRECTORIES)
    (tmp_path / "without" / "manifest.json").unlink()
    save(tmp_path / "leftover")
    (tmp_path / "leftover").rename(tmp_path / ".core-tmp-host-1")
    save(tmp_path / "damaged", DIRECTORIES)
    os.truncate(tmp_path / "damaged" / "shard-00000.pt", 10)
    save(tmp_path / "cut off")
    os.truncate(tmp_path / "cut off", 1000)
    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == tmp_path / "good"
    found = {record.getMessage().split(f"{tmp_path}/")[-1].split(" is ")[0] for record in caplog.records}
    assert found == {"cut off", "without", "damaged/shard-00000.pt"}
    assert ".git" not in caplog.text
    save(tmp_path / ".hidden")
    assert latest(tmp_path) == tmp_path / ".hidden"
    with pytest.raises(CheckpointError, match=r"'\.core-x' is reserved"):
        save(tmp_path / ".core-x")
    assert [is_committed(tmp_path / name) for name in ("good", "file", "logs", "damaged", "none")] == [
        *(True, False, False, False, False)
    ]


def test_a_checkpoint_that_another_process_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that keeps one checkpoint saves the next and removes this one: then the next is the latest."""
    io, read = TorchCheckpointIO(), LocalStore.manifest
    io.save_checkpoint({"n": 1}, tmp_path / "first")

    def goes_on(store: LocalStore) -> Manifest:
        monkeypatch.setattr(LocalStore, "manifest", read)
        io.save_checkpoint({"n": 2}, tmp_path / "second")
        io.remove_checkpoint(tmp_path / "first")
        return read(store)

    monkeypatch.setattr(LocalStore, "manifest", goes_on)
    assert latest(tmp_path) == tmp_path / "second"
    assert not caplog.records


def test_a_save_does_not_read_what_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time does not grow with the checkpoints in the directory; what another process has saved there counts."""
    for number in range(20):
        save(tmp_path / f"{number}")
    original, opened = manifest_module.open_file, list[Path]()

    def noted(path: Path) -> Any:
        opened.append(path)
        return original(path)

    opens, ends = Path.open, list[str]()

    def noted_end(path: Path, *args: Any, **options: Any) -> Any:
        ends.append(path.name)
        return opens(path, *args, **options)

    with monkeypatch.context() as patch:
        for module in (manifest_module, directories):
            patch.setattr(module, "open_file", noted)
        patch.setattr(Path, "open", noted_end)
        save(tmp_path / "new")
    assert {path.parent.name for path in opened if not path.parent.name.startswith(".")} <= {"19", "new"}
    assert set(ends) <= {"19", "new"}
    assert read_manifest(tmp_path / "new").sequence == 21

    code = "import sys; from core.checkpoints import TorchCheckpointIO as IO; IO().save_checkpoint({}, sys.argv[1])"
    for name in ("7", "other"):
        subprocess.run([sys.executable, "-c", code, tmp_path / name], check=True, timeout=120)
    save(tmp_path / "newer")
    assert [read_manifest(tmp_path / name).sequence for name in ("7", "other", "newer")] == [22, 23, 24]
    assert latest(tmp_path) == tmp_path / "newer"


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EMFILE, errno.ENOTCONN])
def test_a_checkpoint_that_cannot_be_read_now(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be whole: no older one is taken instead, and no save gets a number before it."""
    for name in ("old", "new"):
        save(tmp_path / name, DIRECTORIES)
    original = manifest_module.open_file

    def fails(path: Path) -> Any:
        if path.parent.name == "new":
            raise OSError(code, os.strerror(code), str(path))
        return original(path)

    with monkeypatch.context() as patch:
        patch.setattr(manifest_module, "open_file", fails)
        with pytest.raises(CheckpointError, match=r"new cannot be read"):
            latest(tmp_path)
        with pytest.raises(CheckpointError, match=r"third cannot be written: .*new/manifest\.json"):
            save(tmp_path / "third")
    assert latest(tmp_path) == tmp_path / "new"
    save(tmp_path / "third")
    assert latest(tmp_path) == tmp_path / "third"


def test_a_directory_whose_state_cannot_be_read_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle does not tell that it is no directory."""
    for name in ("old", "new"):
        save(tmp_path / name)
    original = os.stat

    def stale(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("new"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return original(path, **options)

    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(CheckpointError, match=r"new cannot be read: .* Check its server and its mount\."):
        latest(tmp_path)


def test_a_directory_in_which_names_change_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved last cannot be told: after some seconds, that is an error."""
    monkeypatch.setattr(store_module, "SECONDS", 0.1)
    save(tmp_path / "good")
    (tmp_path / "0").touch()
    read, count = LocalStore.manifest, itertools.count()

    def read_while_a_name_changes(store: LocalStore) -> Manifest:
        number = next(count)
        (tmp_path / f"{number}").rename(tmp_path / f"{number + 1}")
        return read(store)

    monkeypatch.setattr(LocalStore, "manifest", read_while_a_name_changes)
    with pytest.raises(CheckpointError, match=rf"directory='{tmp_path}': another process .* in \d s\. Give the path"):
        latest(tmp_path)


def test_a_checkpoint_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read again and again without end."""
    monkeypatch.setattr(store_module, "SECONDS", 0.1)
    save(tmp_path / "c")

    def read_slowly(directory: Path) -> Manifest:
        manifest = Manifest.read(directory)
        save(tmp_path / "c")
        return manifest

    with pytest.raises(CheckpointError, match=rf"checkpoint {tmp_path}/c was replaced .* under a different name"):
        store_module.read_undisturbed(tmp_path / "c", read_slowly)


@pytest.mark.parametrize("when", ["the names are listed", "it is read", "it is read alone"])
def test_a_checkpoint_that_a_save_replaces_meanwhile(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The old one has been set aside when the look begins, and the new one takes its place during the look."""
    IO.save_checkpoint({"n": 1}, tmp_path / "c")
    IO.save_checkpoint({"n": 2}, tmp_path / "new" / "c")
    shutil.move(tmp_path / "new", tmp_path / ".core-tmp-host+1")
    (tmp_path / ".core-old").mkdir()
    (tmp_path / "c").rename(tmp_path / ".core-old" / "c")

    def commit() -> None:
        if (tmp_path / ".core-old" / "c").exists():
            (tmp_path / ".core-tmp-host+1" / "c").rename(tmp_path / "c")
            (tmp_path / ".core-old" / "c").rename(tmp_path / ".core-tmp-host+1" / "old")
            shutil.rmtree(tmp_path / ".core-tmp-host+1")

    def late(folder: Path) -> list[str]:
        commit()
        return set_aside_names(folder)

    def early(path: Any) -> Path:
        found = locate(path)
        if Path(path).name == "c":
            commit()
        return found

    if when == "the names are listed":
        monkeypatch.setattr(local_store, "set_aside_names", late)
    else:
        monkeypatch.setattr(local_store, "locate", early)
        monkeypatch.setattr(store_module, "locate", early)
    if when == "it is read alone":
        assert is_committed(tmp_path / "c")
    else:
        assert latest(tmp_path) == tmp_path / "c"
    assert IO.load_checkpoint(tmp_path / "c") == {"n": 2}
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_newest_is_found_while_it_is_saved_again(tmp_path: Path) -> None:
    """By each of thousands of calls, while another process saves over the same path all the time."""
    IO.save_checkpoint({}, tmp_path / "older")
    IO.save_checkpoint({}, tmp_path / "c")
    writer = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "scripts" / "save_again.py", tmp_path / "c"], stdin=subprocess.PIPE
    )
    try:
        before = read_manifest(tmp_path / "c").sequence
        for number in range(2000):
            assert latest(tmp_path) == tmp_path / "c"
            assert number % 4 or is_committed(tmp_path / "c")
        while read_manifest(tmp_path / "c").sequence < before + 10:  # it was saved meanwhile
            assert latest(tmp_path) == tmp_path / "c"
            assert writer.poll() is None
    finally:
        writer.communicate()  # its input ends, and it with it
    assert writer.returncode == 0


def test_a_checkpoint_that_was_set_aside_is_found_under_its_own_name(tmp_path: Path) -> None:
    """After a save that died half-way, the old one still is the latest."""
    save(tmp_path / "c")
    (tmp_path / ".core-old").mkdir()
    (tmp_path / "c").rename(tmp_path / ".core-old" / "c")
    assert latest(tmp_path) == tmp_path / "c"
    assert is_committed(tmp_path / "c")
    assert locate(tmp_path / "c") == tmp_path / ".core-old" / "c"
    assert IO.load_checkpoint(tmp_path / "c")["x"].sum() == 10


@pytest.mark.parametrize("io", [IO, DIRECTORIES])
def test_a_later_layout_is_not_passed_over(io: CheckpointIO, tmp_path: Path) -> None:
    """Going on from an older checkpoint because the last cannot be read is the user's choice, not ours."""
    save(tmp_path / "old")
    save(tmp_path / "new", io)
    claim_newer_format(tmp_path / "new")
    with pytest.raises(CheckpointError, match="format version 99"):
        latest(tmp_path)
    assert is_committed(tmp_path / "new")


@pytest.mark.parametrize("io", [IO, DIRECTORIES])
def test_a_later_layout_can_be_replaced_and_removed(io: CheckpointIO, tmp_path: Path) -> None:
    """It is a checkpoint all the same."""
    for name in ("replaced", "removed"):
        save(tmp_path / name, io)
        claim_newer_format(tmp_path / name)
    save(tmp_path / "replaced")
    IO.remove_checkpoint(tmp_path / "removed")
    assert read_manifest(tmp_path / "replaced").checkpoint_io == "torch"
    assert os.listdir(tmp_path) == ["replaced"]


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    """It is named with its cause."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file.*Not a directory"):
        latest(tmp_path / "file")


def test_a_clock_that_was_set_back_does_not_hide_what_was_saved_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the saves decides, also of those over an existing name."""

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Earlier:
            return cls(2000, 1, 1, tzinfo=tz)

    save(tmp_path / "b")
    save(tmp_path / "c")
    monkeypatch.setattr(manifest_module, "datetime", Earlier)
    save(tmp_path / "a")
    assert read_manifest(tmp_path / "a").saved_at < read_manifest(tmp_path / "b").saved_at
    assert latest(tmp_path) == tmp_path / "a"
    save(tmp_path / "b")
    assert latest(tmp_path) == tmp_path / "b"
    IO.remove_checkpoint(tmp_path / "b")
    assert latest(tmp_path) == tmp_path / "a"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "cut", "binary", "deep"])
def test_a_damaged_manifest_does_not_stop_the_next_save(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The resumed run saves under the same name; what was damaged is kept, since no one can tell whose it is."""
    save(tmp_path / "good")
    save(tmp_path / "last", DIRECTORIES)
    (tmp_path / "last" / "manifest.json").write_bytes(damage)
    assert latest(tmp_path) == tmp_path / "good"
    save(tmp_path / "last", DIRECTORIES)
    assert latest(tmp_path) == tmp_path / "last"
    assert sorted(os.listdir(tmp_path)) == ["good", "last", "last.damaged-1"]
    assert "kept as" in caplog.text
    (tmp_path / "last" / "manifest.json").write_bytes(damage)
    IO.remove_checkpoint(tmp_path / "last")
    assert sorted(os.listdir(tmp_path)) == ["good", "last.damaged-1", "last.damaged-2"]


def test_every_flipped_bit_of_a_manifest_is_found_or_harmless(tmp_path: Path) -> None:
    """What can still be read says what was written; the next save works in any case."""
    save(tmp_path / "c", DIRECTORIES)
    path = tmp_path / "c" / "manifest.json"
    written, manifest = path.read_bytes(), read_manifest(tmp_path / "c")
    unnoticed = 0
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert read_manifest(tmp_path / "c") == manifest
            unnoticed += 1
        except CheckpointError:
            assert not is_committed(tmp_path / "c") or b"version" in written[place - 30 : place]
        assert is_checkpoint(tmp_path / "c") or is_damaged(tmp_path / "c")
    assert unnoticed < 0.02 * len(written)  # spaces between the values


@pytest.mark.parametrize("io", [IO, DIRECTORIES])
def test_a_checkpoint_in_another_format_matters_only_if_it_may_be_the_last(io: CheckpointIO, tmp_path: Path) -> None:
    """One bad directory among good ones does not stop a run from going on."""
    save(tmp_path / "old", io)
    save(tmp_path / "new", io)
    claim_newer_format(tmp_path / "old")
    assert latest(tmp_path) == tmp_path / "new"
    claim_newer_format(tmp_path / "new")
    with pytest.raises(CheckpointError, match="format version 99"):
        latest(tmp_path)


def test_a_bad_directory_is_passed_over(tmp_path: Path) -> None:
    """Whatever lies in its place."""
    save(tmp_path / "good")
    for name, content in (("infinite", '{"format": "torch-hal checkpoint", "format_version": 1e999}'), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(content)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "manifest.json")
    (tmp_path / "folder" / "manifest.json").mkdir(parents=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert latest(tmp_path) == tmp_path / "good"
    save(tmp_path / "next")
    assert latest(tmp_path) == tmp_path / "next"


@pytest.mark.parametrize(("io", "part"), [(IO, ""), (DIRECTORIES, "/shard-00000.pt")])
def test_a_damaged_checkpoint_names_the_newest_whole_one(io: CheckpointIO, part: str, tmp_path: Path) -> None:
    """By sizes nothing is wrong with the last; the error of loading it says with which to go on."""
    for name in ("a", "b", "c"):
        save(tmp_path / name, io)
    for name in ("b", "c"):
        shard = Path(f"{tmp_path / name}{part}")
        shard.write_bytes(b"PK\x03\x04!" + shard.read_bytes()[5:])
    with pytest.raises(CheckpointError, match=rf"c{part} is damaged.*The newest whole one .* {tmp_path}/a\."):
        io.load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("sequence", [int("9" * 4300), 2**53, 2**53 - 1, -1, "7", None, 1e300])
@pytest.mark.parametrize("io", [IO, DIRECTORIES])
def test_a_sequence_number_that_no_save_has_given(
    io: CheckpointIO, sequence: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Later saves in the same directory succeed, and the last of them is the latest."""
    save(tmp_path / "forged", io)
    save(tmp_path / "good", io)
    content = {**json.loads(manifest_bytes(tmp_path / "forged")), "sequence": sequence}
    del content["sha256"]
    text = json.dumps({**content, "sha256": manifest_module._digest(content)})
    number = sequence if isinstance(sequence, int) and 0 <= sequence < 10**16 else 10**16 - 1
    write_manifest(tmp_path / "forged", text.encode(), number)
    for name in ("next", "last"):
        save(tmp_path / name, io)
        assert latest(tmp_path) == tmp_path / name
    assert all("forged" in record.getMessage() for record in caplog.records)


def test_each_checkpoint_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many, a save and ``latest`` read those that are new, also where another process replaced one."""
    for number in range(20):
        save(tmp_path / f"step={number}", DIRECTORIES if number % 2 else IO)
    read: list[str] = []
    original = directories.sequence_of

    def counted(place: str) -> int:
        read.append(os.path.basename(place))
        return original(place)

    monkeypatch.setattr(directories, "sequence_of", counted)
    assert latest(tmp_path) == tmp_path / "step=19"
    save(tmp_path / "new")
    assert latest(tmp_path) == tmp_path / "new"
    assert sorted(read) == ["new", "step=19"]
    code = (
        "import sys, torch; from core.checkpoints import TorchCheckpointIO as IO; IO().save_checkpoint({}, sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "step=3"], check=True)
    assert latest(tmp_path) == tmp_path / "step=3"
    save(tmp_path / "newest")
    assert read_manifest(tmp_path / "newest").sequence == 23
    assert sorted(read) == ["new", "step=19", "step=3"]
