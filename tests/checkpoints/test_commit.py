"""The commit protocol: whatever happens at whichever step, a load finds exactly the old checkpoint or the new one."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python
from steps_of_saves import NEW, OLD, Steps, dying, dying_in_a_child, fail, found, number_of_steps

from core.checkpoints import (
    CheckpointIO,
    ShardedCheckpointIO,
    TorchCheckpointIO,
    committed_directory,
    committed_file,
    locate,
    remove_committed,
)
from core.errors import CheckpointError

IO = TorchCheckpointIO()
DIRECTORIES = ShardedCheckpointIO()

# The tests fork this process, which has torch's threads; the children only write files.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class FileIO(CheckpointIO):
    """A single file without a manifest, as a vendor's or user's class may write it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with committed_file(path) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any = None) -> dict[str, Any]:
        try:
            content: dict[str, Any] = torch.load(locate(path), map_location, weights_only=True)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read") from error
        return content

    def remove_checkpoint(self, path: Any) -> None:
        remove_committed(path)


@pytest.fixture(autouse=True)
def quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk cannot be told from what is not yet, short of pulling the plug; one test asks for the order."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module", autouse=True)
def versions_are_known(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A process looks up versions and imports modules once: not among the steps that are counted below."""
    for io in (IO, DIRECTORIES):
        io.save_checkpoint({}, tmp_path_factory.mktemp("first") / "c")


def set_aside(path: Path) -> None:
    """What a save leaves that dies after it set the old checkpoint aside."""
    DIRECTORIES.save_checkpoint(OLD, path)
    aside = path.parent / ".core-old"
    aside.mkdir()
    path.rename(aside / path.name)


def not_yet_deleted(path: Path) -> None:
    """What a save leaves that dies after its commit, before it deleted the old checkpoint."""
    DIRECTORIES.save_checkpoint({"x": torch.full((3,), 9.0)}, path)
    aside = path.parent / ".core-old"
    aside.mkdir()
    path.rename(aside / path.name)
    DIRECTORIES.save_checkpoint(OLD, path.with_name("other"))
    path.with_name("other").rename(path)


# What is there, who saves, who can read what was there.
SCENES: dict[str, tuple[Callable[[Path], Any], CheckpointIO, CheckpointIO]] = {
    "nothing there": (lambda path: None, DIRECTORIES, DIRECTORIES),
    "over a directory": (lambda path: DIRECTORIES.save_checkpoint(OLD, path), DIRECTORIES, DIRECTORIES),
    "over a set aside one": (set_aside, DIRECTORIES, DIRECTORIES),
    "over one with a predecessor": (not_yet_deleted, DIRECTORIES, DIRECTORIES),
    "over a file": (lambda path: IO.save_checkpoint(OLD, path), DIRECTORIES, IO),
    "over an empty directory": (lambda path: path.mkdir(), DIRECTORIES, DIRECTORIES),
    "a file": (lambda path: None, IO, IO),
    "a file over a file": (lambda path: IO.save_checkpoint(OLD, path), IO, IO),
    "a file over a directory": (lambda path: DIRECTORIES.save_checkpoint(OLD, path), IO, DIRECTORIES),
    "a file over an empty directory": (lambda path: path.mkdir(), IO, IO),
    "a file of others over one of theirs": (lambda path: FileIO().save_checkpoint(OLD, path), FileIO(), FileIO()),
}


IN_A_CHILD = ("over a directory", "a file over a file")


@pytest.mark.parametrize(
    ("scene", "die"),
    [
        *((scene, dying) for scene in SCENES),
        ("over a directory", dying_in_a_child),
        ("a file over a file", dying_in_a_child),
    ],
)
def test_a_save_that_dies_leaves_the_old_or_the_new(
    scene: str, die: Callable[[Callable[[], None], int], None], tmp_path: Path
) -> None:
    """At every step of the protocol; and the next save next to it takes all leftovers away."""
    prepare, saver, reader = SCENES[scene]
    count = tmp_path / "count" / "c"
    count.parent.mkdir()
    prepare(count)
    before = found(count, saver, reader)
    outcomes = []
    for at in range(number_of_steps(lambda: saver.save_checkpoint(NEW, count))):
        path = tmp_path / str(at) / "c"
        path.parent.mkdir()
        prepare(path)
        die(lambda: saver.save_checkpoint(NEW, path), at)  # noqa: B023
        outcomes.append(found(path, saver, reader))
        saver.save_checkpoint(NEW, path)
        assert found(path, saver) == "new"
        assert os.listdir(path.parent) == ["c"]
    # First always the old one, and from one step on always the new one.
    assert outcomes == sorted(outcomes, key=["nothing", "old", "new"].index)
    assert {outcomes[0], outcomes[-1]} == {before, "new"}
    assert set(outcomes) == {before, "new"}


@pytest.mark.parametrize("scene", SCENES)
def test_a_save_that_fails_leaves_the_old_and_says_so(scene: str, tmp_path: Path) -> None:
    """An error at any step is raised as CheckpointError; only once the new one is in place does a save succeed."""
    prepare, saver, reader = SCENES[scene]
    count = tmp_path / "count" / "c"
    count.parent.mkdir()
    prepare(count)
    before = found(count, saver, reader)
    for at in range(number_of_steps(lambda: saver.save_checkpoint(NEW, count))):
        path = tmp_path / str(at) / "c"
        path.parent.mkdir()
        prepare(path)
        was_there = os.path.lexists(path)
        error: CheckpointError | None = None
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, at, fail)
            try:
                saver.save_checkpoint(NEW, path)
            except CheckpointError as raised:
                error = raised
        outcome = found(path, saver, reader)
        # The sync of the directory after the commit is the one error that comes too late to take the new one back.
        late = "replace" in steps.names[:at]
        assert outcome == ("new" if error is None or late else before), steps.names[at]
        if error is not None:
            assert f"{path} {'is in place, but may be lost' if late else 'cannot be written'}" in str(error)
            assert before == "nothing" or os.path.lexists(path) == was_there or late
            assert "injected" in str(error)
        saver.save_checkpoint(NEW, path)
        assert found(path, saver) == "new"
        assert os.listdir(path.parent) == ["c"]


EVERY_CALL = ("stat", "lstat", "close", "scandir", "symlink", "readlink")
"""What a save also calls."""


@pytest.mark.parametrize(
    "scene",
    [
        *("over a directory", "a file over a file"),
        *(
            pytest.param(scene, marks=pytest.mark.slow)
            for scene in ("nothing there", "over a set aside one", "over a file")
        ),
    ],
)
def test_an_error_of_any_call_says_what_is_there(scene: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An earlier checkpoint is called unchanged where it is, and a new one in place; no staging directory is left."""
    prepare, saver, reader = SCENES[scene]
    count = tmp_path / "count" / "c"
    count.parent.mkdir()
    prepare(count)
    before = found(count, saver, reader)
    said: set[tuple[str, str]] = set()
    for at in range(number_of_steps(lambda: saver.save_checkpoint(NEW, count), EVERY_CALL)):
        path = tmp_path / str(at) / "c"
        path.parent.mkdir()
        prepare(path)
        message = ""
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, at, fail, more=EVERY_CALL)
            try:
                saver.save_checkpoint(NEW, path)
            except CheckpointError as error:
                message = str(error)
        outcome = found(path, saver, reader)
        assert outcome in (before, "new"), steps.names[at]
        assert ("An earlier checkpoint is unchanged" in message) == bool(message and outcome == "old"), message
        assert ("is in place" in message) == bool(message and outcome == "new"), message
        left = [name for name in os.listdir(path.parent) if name.startswith(".core-tmp")]
        # What cannot be deleted stays until the next save, which the log says.
        # Only what fails to be deleted after the commit stays, until the next save, and the log says so.
        assert not left or (not message and "could not remove the temporary directory" in caplog.text), steps.names[at]
        caplog.clear()
        said.add((steps.names[at], outcome if message else "saved"))
        saver.save_checkpoint(NEW, path)
        assert os.listdir(path.parent) == ["c"]
    assert {("fsync", "new"), ("close", "new"), ("stat", "new")} <= said
    assert {("fsync", before), ("mkdir", before), ("replace", before)} <= said


@pytest.mark.parametrize(
    "prepare", [SCENES["over a directory"][0], SCENES["a file over a file"][0], set_aside, not_yet_deleted]
)
@pytest.mark.parametrize("how", ["dies", "fails"])
def test_a_removal_that_does_not_end_leaves_the_old_or_nothing(
    how: str, prepare: Callable[[Path], Any], tmp_path: Path
) -> None:
    """Never half of it, nor a predecessor that was gone before; and a second removal takes the rest."""
    count = tmp_path / "count" / "c"
    count.parent.mkdir()
    prepare(count)
    for at in range(number_of_steps(lambda: IO.remove_checkpoint(count))):
        path = tmp_path / str(at) / "c"
        path.parent.mkdir()
        prepare(path)
        if how == "dies":
            dying(lambda: IO.remove_checkpoint(path), at)  # noqa: B023
        else:
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(CheckpointError):
                Steps(patch, at, fail)
                IO.remove_checkpoint(path)
        assert found(path, IO, DIRECTORIES) in ("old", "nothing")
        IO.remove_checkpoint(path)
        assert found(path, IO, DIRECTORIES) == "nothing"


def test_everything_is_on_disk_before_it_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file and its directory are synced before the rename, and the directory that the rename changed after it."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        events.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def replaced(*args: Any) -> None:
        events.append("commit")
        replace(*args)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    for io, parts in ((DIRECTORIES, {"shard-00000.pt", "manifest.json"}), (IO, set())):
        events.clear()
        io.save_checkpoint(NEW, tmp_path / type(io).__name__ / "c")
        commit = events.index("commit")
        assert events[0] == tmp_path.name
        assert set(events[1 : commit - 1]) == parts
        assert events[commit - 1] == "c"
        assert events[commit + 1 :] == [type(io).__name__]


# -- processes next to each other -----------------------------------------------------------------------------------


def test_a_save_killed_while_it_writes_leaves_the_old(tmp_path: Path) -> None:
    """The old one loads; the rest of the killed one goes with the next save, not before its process is dead."""
    IO.save_checkpoint(OLD, tmp_path / "c")
    large = {str(i): torch.ones(250_000) for i in range(20)}
    ready, tell = os.pipe()

    def hang() -> None:
        os.write(tell, b"!")
        time.sleep(60)

    child = os.fork()
    if child == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                Steps(patch, 70, hang)
                IO.save_checkpoint(large, tmp_path / "c")
        finally:
            os._exit(1)
    try:
        assert os.read(ready, 1) == b"!"
        (rest,) = tmp_path.glob(".core-tmp-*")
        assert 1e6 < (rest / "c").stat().st_size < 20e6
        IO.save_checkpoint(NEW, tmp_path / "next")
        assert rest.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)
    assert found(tmp_path / "c", IO) == "old"
    IO.save_checkpoint(NEW, tmp_path / "next")
    assert sorted(os.listdir(tmp_path)) == ["c", "next"]


@pytest.mark.parametrize("io", [IO, DIRECTORIES])
def test_a_reader_during_a_save_always_finds_one(io: CheckpointIO, tmp_path: Path) -> None:
    """While one process overwrites a checkpoint again and again, another loads it without an error."""
    path, enough = tmp_path / "c", tmp_path / "enough"
    io.save_checkpoint({"x": torch.zeros(1000)}, path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            numbers = count(1)
            while not enough.exists():
                io.save_checkpoint({"x": torch.full((1000,), float(next(numbers)))}, path)
            code = 0
        finally:
            os._exit(code)
    seen = [0.0]
    try:
        while len(seen) <= 150 or len(set(seen)) <= 10:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the writer has ended"
            value = io.load_checkpoint(path)["x"]
            assert value.eq(value[0]).all()
            seen.append(value[0].item())
    finally:
        enough.touch()
    assert os.waitpid(child, 0)[1] == 0
    assert seen == sorted(seen)


# -- the helpers ---------------------------------------------------------------------------------------------------


def test_a_single_file_is_committed_when_the_block_ends(tmp_path: Path) -> None:
    """Until then nothing is at the path; the file is written under its own name, for writers that look at endings."""
    with committed_file(tmp_path / "deep" / "model.npz") as file:
        assert file.name == "model.npz"
        file.write_text("content")
        assert not (tmp_path / "deep" / "model.npz").exists()
    assert (tmp_path / "deep" / "model.npz").read_text() == "content"
    assert os.listdir(tmp_path / "deep") == ["model.npz"]


def test_an_exception_in_the_block_leaves_what_was_there(tmp_path: Path) -> None:
    """It passes through as it is, and nothing of the new file stays."""
    (tmp_path / "file").write_text("old")

    def save() -> None:
        with committed_file(tmp_path / "file") as file:
            file.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save()
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    """A save that did nothing must not look like one."""
    with pytest.raises(CheckpointError, match="cannot be written"), committed_file(tmp_path / "file"):
        pass
    with (
        pytest.raises(CheckpointError, match=r"the directory has no manifest\.json"),
        committed_directory(tmp_path / "d"),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    """The hidden directory is private, what comes out of it is not."""
    IO.save_checkpoint(NEW, tmp_path / "file")
    DIRECTORIES.save_checkpoint(NEW, tmp_path / "c")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").touch()
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "plain").stat().st_mode
    for name in ("c/manifest.json", "file"):
        assert (tmp_path / name).stat().st_mode == (tmp_path / "plain" / "file").stat().st_mode


def test_an_old_checkpoint_that_cannot_be_deleted_is_named_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The new one is committed, so the save succeeds; what is left over is not passed over in silence."""
    DIRECTORIES.save_checkpoint(OLD, tmp_path / "c")
    rename = os.rename

    def refuse_old(source: Any, target: Any) -> None:
        if os.path.basename(target) == "old":
            fail()
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_old)
    with caplog.at_level(logging.WARNING):
        DIRECTORIES.save_checkpoint(NEW, tmp_path / "c")
    assert found(tmp_path / "c", DIRECTORIES) == "new"
    assert f"{tmp_path}/.core-old/c" in caplog.text
    assert "injected" in caplog.text


def test_sharded_reads_beside_a_writer_are_of_one_checkpoint(tmp_path: Path) -> None:
    """The step is in one file, the tensor in another: both are of the same save, whenever it comes."""
    script = Path(__file__).parent / "scripts" / "save_shards.py"
    for value in (1, 2):
        run_python(script, tmp_path / str(value), value, cwd=tmp_path, warnings="ignore")
    path = tmp_path / "c"
    for at in range(60):
        shutil.copytree(tmp_path / "1", path)
        with pytest.MonkeyPatch.context() as patch:

            def replace() -> None:
                path.rename(tmp_path / "gone")
                shutil.copytree(tmp_path / "2", path)

            steps = Steps(patch, at, replace)
            read = ShardedCheckpointIO().load_checkpoint(path)
        assert read["rows"].eq(read["step"]).all(), at
        replaced = (tmp_path / "gone").exists()
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        if not replaced:
            break
    assert at > 5
    assert len(steps.names) <= at


@pytest.mark.parametrize("target", ["nowhere", "folder"])
def test_a_folder_that_is_a_link_to_nothing(target: str, tmp_path: Path) -> None:
    """Such as to a disk that is not mounted, or to itself: the error says so."""
    (tmp_path / "folder").symlink_to(tmp_path / target)
    with pytest.raises(CheckpointError, match=r"folder/c cannot be written: .*Link to a directory that is not there"):
        TorchCheckpointIO().save_checkpoint({}, tmp_path / "folder" / "c")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="File exists"):
        TorchCheckpointIO().save_checkpoint({}, tmp_path / "file" / "c")
