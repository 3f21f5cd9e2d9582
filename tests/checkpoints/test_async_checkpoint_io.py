"""AsyncCheckpointIO: one copy, written in the background; its errors are never lost."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Runtime, Trainer
from core.callbacks import Callback, ModelCheckpoint
from core.checkpoints import AsyncCheckpointIO, ShardedCheckpointIO, TorchCheckpointIO, is_committed, read_manifest
from core.errors import CheckpointError, ConfigurationError, WrongTypeError


class HeldIO(TorchCheckpointIO):
    """Writes when it is told to, or fails."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.fails = False
        self.writing = threading.Event()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.writing.set()
        assert self.may_write.wait(30)
        if self.fails:
            raise OSError(28, "No space left on device")
        super().save_checkpoint(checkpoint, path, storage_options)


@pytest.fixture
def held() -> HeldIO:
    return HeldIO()


def test_the_call_returns_before_the_write_which_later_changes_do_not_reach(tmp_path: Path, held: HeldIO) -> None:
    """``save_checkpoint`` returns while the write waits; what is written is the state at the call."""
    io = AsyncCheckpointIO(held)
    tensor, numbers = torch.arange(6.0), [1, 2]
    io.save_checkpoint({"t": tensor, "n": numbers}, tmp_path / "a")
    assert not is_committed(tmp_path / "a")
    tensor.zero_()
    numbers.append(3)
    held.may_write.set()
    io.wait()
    loaded = TorchCheckpointIO().load_checkpoint(tmp_path / "a")
    assert loaded["t"].tolist() == [0, 1, 2, 3, 4, 5]
    assert loaded["n"] == [1, 2]


def test_one_write_runs_at_a_time(tmp_path: Path, held: HeldIO) -> None:
    """A second save waits for the first one, and both are committed in order."""
    io = AsyncCheckpointIO(held)
    io.save_checkpoint({"n": 1}, tmp_path / "a")
    threading.Timer(0.2, held.may_write.set).start()
    io.save_checkpoint({"n": 2}, tmp_path / "b")
    assert is_committed(tmp_path / "a")
    io.teardown()
    assert read_manifest(tmp_path / "a").sequence < read_manifest(tmp_path / "b").sequence


@pytest.mark.parametrize("call", ["save", "wait", "check", "load", "remove", "teardown", "when_committed"])
def test_an_error_is_logged_and_raised_by_the_next_call(
    tmp_path: Path, held: HeldIO, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """Whatever is called next raises the error of a write, once; the checkpoint before it stays."""
    TorchCheckpointIO().save_checkpoint({"n": 0}, tmp_path / "a")
    io, held.fails = AsyncCheckpointIO(held), True
    held.may_write.set()
    with caplog.at_level(logging.ERROR):
        io.save_checkpoint({"n": 1}, tmp_path / "a")
        assert io._write is not None
        io._write.join()
    assert "No space left" in caplog.text
    calls: dict[str, Any] = {
        "save": lambda: io.save_checkpoint({"n": 2}, tmp_path / "b"),
        "wait": io.wait,
        "check": io.check,
        "load": lambda: io.load_checkpoint(tmp_path / "a"),
        "remove": lambda: io.remove_checkpoint(tmp_path / "a"),
        "teardown": io.teardown,
        "when_committed": lambda: io.when_committed(lambda: None),
    }
    with pytest.raises(CheckpointError, match=r"a cannot be written: OSError: .*No space left"):
        calls[call]()
    io.teardown()
    assert io.load_checkpoint(tmp_path / "a") == {"n": 0}


def test_check_does_not_wait(tmp_path: Path, held: HeldIO) -> None:
    """``check``, which each training step calls, returns while a write runs."""
    io = AsyncCheckpointIO(held)
    io.save_checkpoint({"n": 1}, tmp_path / "a")
    io.check()
    held.may_write.set()
    io.teardown()


@pytest.mark.parametrize("fails", [False, True])
def test_removal_follows_the_commit(tmp_path: Path, held: HeldIO, fails: bool) -> None:
    """A checkpoint is removed after the write that was running is committed, and not if that fails."""
    io, held.fails = AsyncCheckpointIO(held), fails
    TorchCheckpointIO().save_checkpoint({"n": 0}, tmp_path / "old")
    io.save_checkpoint({"n": 1}, tmp_path / "new")
    io.remove_checkpoint(tmp_path / "old")
    assert is_committed(tmp_path / "old")
    held.may_write.set()
    if fails:
        with pytest.raises(CheckpointError):
            io.teardown()
    io.teardown()
    assert (is_committed(tmp_path / "old"), is_committed(tmp_path / "new")) == (fails, not fails)


@pytest.mark.parametrize("bad", [{"f": lambda: None}, {"o": {"deep": [object()]}}, [1]])
def test_what_cannot_be_saved_is_refused_at_once(tmp_path: Path, bad: Any) -> None:
    """Arguments are refused by the call itself, as without the background."""
    for io in (AsyncCheckpointIO(), AsyncCheckpointIO(ShardedCheckpointIO())):
        with pytest.raises((CheckpointError, WrongTypeError)) as raised:
            io.save_checkpoint(bad, tmp_path / "a")
        with pytest.raises(type(raised.value)):
            io.inner.save_checkpoint(bad, tmp_path / "a")
        io.teardown()


def test_bad_inner_ios() -> None:
    """What cannot write in the background is refused."""
    for bad in (AsyncCheckpointIO(), "torch"):
        with pytest.raises((ConfigurationError, WrongTypeError), match="inner"):
            AsyncCheckpointIO(bad)  # type: ignore[arg-type]


def test_the_copy_is_what_torch_would_have_written(tmp_path: Path) -> None:
    """Types, shapes, shared memory, metadata and attributes are those of a write that is not in the background."""
    base = torch.arange(10.0)
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    shared = [1]
    state = {
        "views": [base[2:4], base[::2], base.expand(3, 10)],
        "module": module.state_dict(),
        "parameter": nn.Parameter(torch.ones(2)),
        "grad": torch.ones(1, requires_grad=True),
        "complex": torch.tensor([1 + 2j]).conj(),
        "sparse": torch.eye(2).to_sparse(),
        "empty": torch.empty(0, 3),
        "lists": [shared, shared],
        "ordered": OrderedDict(b=1, a=2),
        "size": torch.Size([1, 2]),
        "set": {1, 2},
    }
    for name, io in (("sync", TorchCheckpointIO()), ("async", AsyncCheckpointIO())):
        io.save_checkpoint(state, tmp_path / name)
        io.teardown()
    sync, found = (TorchCheckpointIO().load_checkpoint(tmp_path / name) for name in ("sync", "async"))
    assert str(found) == str(sync)
    assert found["module"]._metadata == sync["module"]._metadata
    assert found["lists"][0] is found["lists"][1]
    views = found["views"]
    assert views[0].untyped_storage().data_ptr() == views[2].untyped_storage().data_ptr()
    assert [view.stride() for view in views] == [view.stride() for view in sync["views"]]
    assert type(found["parameter"]) is nn.Parameter
    assert found["grad"].requires_grad
    sizes = [(tmp_path / name).stat().st_size for name in ("sync", "async")]
    assert abs(sizes[0] - sizes[1]) < 100


def test_memory_is_used_again(tmp_path: Path) -> None:
    """The next copy takes the memory of the last one; ``teardown`` frees it."""
    io, seen = AsyncCheckpointIO(), []
    for step in range(3):
        io.save_checkpoint({"t": torch.full((1000,), float(step))}, tmp_path / f"{step}")
        seen.append(io._staging._used[0].data_ptr())
    assert len(set(seen)) == 1
    io.teardown()
    assert not io._staging._free
    assert not io._staging._used
    assert all(float(io.load_checkpoint(tmp_path / f"{step}")["t"][0]) == step for step in range(3))


def test_a_started_process_gets_its_own() -> None:
    """An AsyncCheckpointIO can be sent to another process."""
    io = pickle.loads(pickle.dumps(AsyncCheckpointIO(ShardedCheckpointIO())))
    assert type(io.inner) is ShardedCheckpointIO
    assert io.is_collective


# -- in the front ends ---------------------------------------------------------------------------------------------


class Regression(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def trainer(folder: Path, io: Any, *callbacks: Callback, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        checkpoint_io=io,
        callbacks=[*callbacks],
        **options,
    )


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(0))), batch_size=8)


def kept(folder: Path) -> dict[str, bool]:
    return {name: is_committed(folder / name) for name in sorted(os.listdir(folder)) if not name.startswith(".")}


@pytest.mark.parametrize("save_last", [True, "link"])
def test_model_checkpoint_keeps_the_same_ones(tmp_path: Path, save_last: Any) -> None:
    """By name, ``async`` leaves the checkpoints that ``torch`` leaves, and a run resumes from them."""
    found = []
    for name in ("torch", "async"):
        callback = ModelCheckpoint(
            tmp_path / name, monitor="step", mode="max", save_top_k=2, save_last=save_last, every_n_train_steps=3
        )
        torch.manual_seed(0)
        made = trainer(tmp_path, name, callback)
        made.fit(Regression(), loader())
        found.append((kept(tmp_path / name), callback.best_k_models.values()))
        module = Regression()
        trainer(tmp_path, name, callback).fit(module, loader(), ckpt_path="last")
        torch.save(module.state_dict(), tmp_path / f"{name}.pt")
    assert str(found[0]) == str(found[1])
    assert all(found[1][0].values())
    weights = [torch.load(tmp_path / f"{name}.pt") for name in ("torch", "async")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_name_in_flight_is_taken(tmp_path: Path, held: HeldIO) -> None:
    """A checkpoint that is still being written is not replaced by the next one of the same name."""
    callback = ModelCheckpoint(tmp_path / "c", filename="same", save_top_k=-1, every_n_train_steps=4)
    held.may_write.set()
    trainer(tmp_path, AsyncCheckpointIO(held), callback).fit(Regression(), loader())
    assert list(kept(tmp_path / "c")) == ["same-v1.ckpt", "same-v2.ckpt", "same.ckpt"]


class FailAt(Callback):
    """Makes writes fail, and counts the steps after that."""

    def __init__(self, io: HeldIO) -> None:
        self.io, self.steps = io, 0
        io.fails = True
        io.may_write.set()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        write = trainer.strategy.checkpoint_io._write
        if write is not None:
            write.join()
        self.steps += 1


def test_training_ends_at_the_step_after_the_failure(tmp_path: Path, held: HeldIO) -> None:
    """The Trainer raises the error of a write before the next step."""
    callback = FailAt(held)
    run = trainer(tmp_path, AsyncCheckpointIO(held), ModelCheckpoint(tmp_path / "c", every_n_train_steps=2), callback)
    with pytest.raises(CheckpointError, match="No space left"):
        run.fit(Regression(), loader())
    # The ModelCheckpoint runs last: it begins the write after step 2, which fails during step 3 at the latest.
    assert callback.steps <= 3


def test_a_failure_of_the_last_write_is_raised_at_the_end(tmp_path: Path, held: HeldIO) -> None:
    """``fit`` and the Runtime's end raise the error of the last write; a save after ``fit`` raises its own."""
    held.fails = True
    held.may_write.set()
    with pytest.raises(CheckpointError, match="No space left"):
        trainer(tmp_path, AsyncCheckpointIO(held), ModelCheckpoint(every_n_epochs=3)).fit(Regression(), loader())
    with (
        pytest.raises(CheckpointError, match="No space left"),
        Runtime(accelerator="cpu", devices=1, checkpoint_io=AsyncCheckpointIO(held)) as runtime,
    ):
        runtime.save({"a": 1}, tmp_path / "a")
    run = trainer(tmp_path, AsyncCheckpointIO(held), enable_checkpointing=False)
    run.fit(Regression(), loader())
    with pytest.raises(CheckpointError, match="No space left"):
        run.save_checkpoint(tmp_path / "after")


def test_the_runtimes_step_raises(tmp_path: Path, held: HeldIO) -> None:
    """``backward`` raises the error of a write; an error of the loop is not hidden by it."""
    held.fails = True
    held.may_write.set()
    io = AsyncCheckpointIO(held)
    with Runtime(accelerator="cpu", devices=1, checkpoint_io=io) as runtime:
        model = runtime.prepare(nn.Linear(2, 1))
        runtime.save({"model": model}, tmp_path / "a")
        assert io._write is not None
        io._write.join()
        with pytest.raises(CheckpointError, match="No space left"):
            runtime.backward(model(torch.ones(1, 2)).sum())
        runtime.backward(model(torch.ones(1, 2)).sum())
    with Runtime(accelerator="cpu", devices=1, checkpoint_io=AsyncCheckpointIO(held)) as runtime:
        runtime.save({"a": 1}, tmp_path / "a")
        runtime.teardown(failed=True)


def save_where_one_copy_fails(runtime: Runtime, folder: Path) -> list[float]:
    io: Any = runtime.strategy.checkpoint_io
    copy = io._staging.copy

    def fail(checkpoint: dict[str, Any]) -> Any:
        raise MemoryError("no memory is left")

    io._staging.copy = fail if runtime.process_index == 1 else copy
    with pytest.raises(CheckpointError, match="rank 1 could not do its part of the checkpoint: MemoryError"):
        runtime.save({"a": torch.ones(3)}, folder / "a")
    io._staging.copy = copy
    runtime.save({"a": torch.ones(3)}, folder / "b")
    io.wait()
    runtime.barrier()
    loaded: list[float] = runtime.load(folder / "b")["a"].tolist()
    return loaded


def test_a_copy_that_fails_in_one_process_fails_in_all(tmp_path: Path) -> None:
    """The others would begin to write, and wait for this one; the next save works."""
    io = AsyncCheckpointIO(ShardedCheckpointIO())
    runtime = Runtime(accelerator="cpu", devices=3, strategy="ddp_fork", checkpoint_io=io)
    assert runtime.launch(save_where_one_copy_fails, tmp_path) == [1.0, 1.0, 1.0]
    assert not is_committed(tmp_path / "a")


SCRIPT = """
import resource, signal, sys
import torch
from core import Runtime
from core.errors import CheckpointError

resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
runtime = Runtime(accelerator="cpu", devices=1, checkpoint_io="async")
layer = runtime.prepare(torch.nn.Linear(500, 500))
runtime.save({"layer": layer}, "checkpoint")
print("saved")
if sys.argv[1] == "notices":
    try:
        runtime.teardown()
    except CheckpointError:
        print("noticed")
"""


@pytest.mark.parametrize(("how", "code"), [("ends", 1), ("notices", 0)])
def test_a_script_that_does_not_notice_a_failure(how: str, code: int, tmp_path: Path) -> None:
    """It ends with exit code 1, and says why; one that has caught the error ends as usual."""
    (tmp_path / "save.py").write_text(SCRIPT)
    ended = run_python("save.py", how, cwd=tmp_path, expect=code)
    assert ended.stdout.split() == ["saved", *(["noticed"] if how == "notices" else [])]
    assert ("exit code 1, since a checkpoint was not written: checkpoint " in ended.stderr) == bool(code)
    assert "File too large" in ended.stderr


def test_save_state_is_committed_when_it_returns(tmp_path: Path) -> None:
    """``save_state`` waits for its part, since it commits the whole."""
    with Runtime(accelerator="cpu", devices=1, checkpoint_io="async") as runtime:
        model = runtime.prepare(nn.Linear(2, 1))
        path = runtime.save_state(tmp_path / "state")
        assert is_committed(path)
        weights = model.state_dict()["weight"].clone()
        nn.init.zeros_(model.weight)
        runtime.load_state(path)
        assert torch.equal(model.state_dict()["weight"], weights)


def test_a_relative_path_while_the_script_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is meant from the working directory at the time of the call, however late the thread writes or removes it."""
    inner = HeldIO()
    io = AsyncCheckpointIO(inner)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    for remove in (False, True):
        if remove:
            inner.may_write.clear()
            io.save_checkpoint({"a": 2}, "second")
            io.remove_checkpoint("first")
        else:
            io.save_checkpoint({"a": 1}, "first")
        monkeypatch.chdir(tmp_path / "other")
        inner.may_write.set()
        io.wait()
        monkeypatch.chdir(tmp_path)
        assert is_committed(tmp_path / "first") is not remove
    assert not os.listdir(tmp_path / "other")
    io.teardown()
