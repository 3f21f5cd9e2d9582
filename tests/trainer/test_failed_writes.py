"""What a ModelCheckpoint says of its checkpoints after one that could not be written."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from core.callbacks import Callback, ModelCheckpoint
from core.checkpoints import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO, is_committed
from core.errors import CheckpointError

from .test_model_checkpoint import SCORES, run, step_in


class Fails(TorchCheckpointIO):
    """Fails at one write, counted from 1, after a part of it."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.left, self.error = at, error

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error
        super().save_checkpoint(checkpoint, path, storage_options)


@pytest.mark.parametrize(
    ("error", "background"),
    [(CheckpointError("No space left"), False), (KeyboardInterrupt(), False), (CheckpointError("No space left"), True)],
    ids=["full", "ctrl-c", "background"],
)
@pytest.mark.parametrize(("save_last", "writes"), [(None, 8), (True, 13), ("link", 10)])
@pytest.mark.parametrize("at", [2, 4, "the last"])
def test_after_a_write_that_failed(
    at: Any, save_last: Any, writes: int, error: BaseException, background: bool, tmp_path: Path
) -> None:
    """What a ModelCheckpoint names exists, with its own score; what is left next to it is whole."""
    at = writes if at == "the last" else at
    io: CheckpointIO = Fails(at, error)
    io = AsyncCheckpointIO(io) if background else io
    best = ModelCheckpoint(tmp_path / "best", "{epoch}", monitor="score", save_last=save_last)
    newest = ModelCheckpoint(tmp_path / "newest", "{epoch}", save_top_k=-1)
    with pytest.raises(type(error)):
        run(best, callbacks=[best, newest], plugins=[io])
    known = {*best.best_k_models, best.last_model_path} - {""}
    found = {str(path) for path in (tmp_path / "best").glob("*.ckpt")}
    assert all(is_committed(path) for path in known)
    assert all(is_committed(path) for path in found)
    assert set(best.best_k_models) <= found
    assert best.best_model_path in {"", *best.best_k_models}
    if best.best_model_path:
        scores = {path: float(score) for path, score in best.best_k_models.items()}
        assert float(best.best_model_score or math.nan) == min(scores.values())
        assert scores[best.best_model_path] == SCORES[step_in(best.best_model_path) // 7 - 1]
    assert not newest.best_model_path or is_committed(newest.best_model_path)


@pytest.mark.parametrize("background", [False, True])
def test_the_directory_of_a_write_that_failed(background: bool, tmp_path: Path) -> None:
    """It is made for a CheckpointIO, whatever that does, and is not left behind."""
    there = []

    class Own(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            there.append(Path(path).parent.is_dir())
            raise OSError("No space left")

    io: CheckpointIO = Own()
    checkpoint = ModelCheckpoint(tmp_path / "new" / "best")
    with pytest.raises((OSError, CheckpointError), match="No space left"):
        run(checkpoint, plugins=[AsyncCheckpointIO(io) if background else io])
    assert there
    assert all(there)
    assert not (tmp_path / "new").exists()


class Waits(TorchCheckpointIO):
    """Writes when it may."""

    def __init__(self) -> None:
        self.may_write = threading.Event()

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        assert self.may_write.wait(60)
        super().save_checkpoint(checkpoint, path, storage_options)


class Reads(Callback):
    """Reads a ModelCheckpoint while a write runs, then after it."""

    def __init__(self, read: ModelCheckpoint, io: AsyncCheckpointIO, writer: Waits) -> None:
        self.read, self.io, self.writer = read, io, writer
        self.during: list[tuple[int, int]] = []

    def check(self) -> tuple[int, int]:
        """All that it names is there; the steps of the best and of the last."""
        read = self.read
        named = {read.best_model_path, *read.best_k_models, read.kth_best_model_path, read.last_model_path} - {""}
        assert all(is_committed(path) for path in named)
        if read.best_model_path:
            assert read.best_model_score == read.best_k_models[read.best_model_path]
            assert float(read.best_model_score) == SCORES[step_in(read.best_model_path) // 7 - 1]
        return len(read.best_k_models), step_in(read.best_model_path) if read.best_model_path else 0

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Before another one is written."""
        before = self.check()
        self.writer.may_write.set()
        self.io.wait()
        self.writer.may_write.clear()
        if trainer.current_epoch:
            self.during.append(before)
        self.check()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """The last one may be written."""
        self.check()
        self.writer.may_write.set()

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """A check has failed."""
        self.writer.may_write.set()


@pytest.mark.parametrize("save_last", [None, "link"])
def test_while_a_write_runs(save_last: Any, tmp_path: Path) -> None:
    """What a ModelCheckpoint names is committed: a checkpoint that is being written comes after that."""
    io = AsyncCheckpointIO(writer := Waits())
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="score", save_top_k=2, save_last=save_last)
    reads = Reads(best, io, writer)
    run(best, callbacks=[best, reads], plugins=[io])
    assert reads.during[:2] == [(0, 0), (1, 7)]  # of none and of one; two and three have been written
    reads.check()
    whole = ModelCheckpoint(tmp_path / "whole", "{epoch}", monitor="score", save_top_k=2)
    run(whole)
    assert step_in(best.best_model_path) == step_in(whole.best_model_path)
    assert {step_in(path) for path in best.best_k_models} == {step_in(path) for path in whole.best_k_models}
