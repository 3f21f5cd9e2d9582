"""What a ModelCheckpoint says of its checkpoints after one that could not be written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from core.callbacks import ModelCheckpoint
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
