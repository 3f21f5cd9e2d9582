"""A process that still writes a checkpoint when the others have nothing left to do: they end after it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from test_function_launcher import join_group, launch

from core.checkpoints import AsyncCheckpointIO, TorchCheckpointIO
from core.errors import LaunchError
from core.strategies import process_group
from core.strategies.meeting_point import end_saving

WRITING_SECONDS = 1.2


class Writes:
    """What a strategy does at its end: process 0 waits for a write in the background."""

    checkpoint_io = AsyncCheckpointIO()

    def __init__(self, rank: int, marker: Path) -> None:
        self.global_rank, self.marker = rank, marker

    def end_saving(self, failed: bool = False) -> None:
        if self.global_rank == 0:
            time.sleep(WRITING_SECONDS)
            if self.marker.name == "dies":
                os._exit(3)
            self.marker.touch()


def write_and_leave(environ: dict[str, str], marker: Path, io: Any) -> None:
    group = join_group(environ)
    strategy: Any = Writes(int(environ["RANK"]), marker)
    strategy.checkpoint_io = io
    end_saving(strategy, group.board, failed=False)
    group.leave()
    assert marker.exists(), f"rank {environ['RANK']} has left before"


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write takes longer than processes otherwise wait for each other when they leave."""
    monkeypatch.setattr(process_group, "LEAVE_SECONDS", 0.3)


def test_the_others_wait_for_a_write(tmp_path: Path) -> None:
    """However long it takes: under a launcher, the first one that ended because of a signal would be the last."""
    launch(write_and_leave, tmp_path / "written", AsyncCheckpointIO(), processes=3)


def test_no_one_waits_for_an_io_that_does_not_write_in_the_background(tmp_path: Path) -> None:
    """It has written when the save returns."""
    with pytest.raises(LaunchError, match="rank 1 has left before"):
        launch(write_and_leave, tmp_path / "written", TorchCheckpointIO())


def test_a_process_that_dies_while_it_writes_is_not_waited_for(tmp_path: Path) -> None:
    """It cannot take its note away."""
    begin = time.monotonic()
    with pytest.raises(LaunchError, match=r"rank 0 \(process \d+\) exited with code 3"):
        launch(write_and_leave, tmp_path / "dies", AsyncCheckpointIO())
    assert time.monotonic() - begin < 15
