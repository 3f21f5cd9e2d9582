"""Saves that fail or die at each of their steps: operations on the file system, counted."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core.checkpoints import CheckpointIO
from core.errors import CheckpointError

OLD, NEW = {"x": torch.zeros(3)}, {"x": torch.ones(3)}
"""The checkpoint that is there, and the one that a save would put there."""


class Steps:
    """Counts the operations on the file system, and does something at one of them: just before it."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        at: int = -1,
        then: Callable[[], None] = lambda: None,
        *,
        ever_after: bool = False,
        more: tuple[str, ...] = (),
    ) -> None:
        self.names: list[str] = []
        self.at = at
        self.then = then
        self.ever_after = ever_after
        for name in ("mkdir", "open", "rename", "replace", "fsync", "rmdir", "unlink", "listdir", *more):
            patch.setattr(os, name, self.counted(name, getattr(os, name)))
        opened = io.open

        def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            self.step("open file")
            result = opened(file, mode, *args, **kwargs)
            return CountedFile(result, self) if mode == "wb" else result

        patch.setattr(io, "open", open_file)

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.step(name)
            return function(*args, **kwargs)

        return call

    def step(self, name: str) -> None:
        self.names.append(name)
        now = len(self.names) - 1
        if now == self.at or (self.ever_after and now > self.at):
            self.then()


class CountedFile:
    def __init__(self, file: Any, steps: Steps) -> None:
        self.file = file
        self.steps = steps

    def __enter__(self) -> CountedFile:
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.steps.step("close")
        finally:
            self.file.close()

    def write(self, data: Any) -> int:
        self.steps.step("write")
        written: int = self.file.write(data)
        return written

    def flush(self) -> None:
        self.file.flush()


def found(path: Path, *readers: CheckpointIO) -> str:
    """What a load gives: the old checkpoint, the new one, or an error that says there is none."""
    for reader in readers:
        try:
            value = reader.load_checkpoint(path)["x"]
        except CheckpointError:
            continue
        for name, truth in (("old", OLD), ("new", NEW)):
            if torch.equal(value, truth["x"]):
                return name
        return f"neither: {value}"
    return "nothing"


def number_of_steps(action: Callable[[], None], more: tuple[str, ...] = ()) -> int:
    with pytest.MonkeyPatch.context() as patch:
        steps = Steps(patch, more=more)
        action()
    return len(steps.names)


def dying(action: Callable[[], None], at: int) -> None:
    """Run ``action`` as if the process ended just before its step ``at``: from there on nothing works."""
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(CheckpointError, OSError):
        Steps(patch, at, fail, ever_after=True)
        action()


def dying_in_a_child(action: Callable[[], None], at: int) -> None:
    """Run ``action`` in a process that really ends there, with nothing tidied up."""
    child = os.fork()
    if child == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                Steps(patch, at, lambda: os._exit(9))
                action()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


def fail() -> None:
    raise OSError(errno.EIO, "injected")
