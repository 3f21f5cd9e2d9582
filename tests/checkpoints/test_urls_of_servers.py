"""URLs whose names and servers are unusual: names with the characters of patterns, lists without sizes, no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from core.checkpoints import CheckpointIO, SafetensorsCheckpointIO, ShardedCheckpointIO, TorchCheckpointIO, latest
from core.errors import CheckpointError

IOS: list[Callable[[], CheckpointIO]] = [TorchCheckpointIO, ShardedCheckpointIO, SafetensorsCheckpointIO]


def state(number: int) -> dict[str, Any]:
    return {"x": torch.full((3,), float(number)), "core": {}}


class WebServer(MemoryFileSystem):  # type: ignore[misc]
    """As fsspec's file system for ``http://``: lists have no sizes, and errors in them are passed over."""

    protocol = "web"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    is_reached = True

    def find(
        self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        if not self.is_reached:
            return {}
        found = super().find(path, maxdepth, withdirs, detail=True, **options)
        return {name: {**info, "size": None} for name, info in found.items()}

    def info(self, path: str, **options: Any) -> Any:
        if not self.is_reached:
            raise ConnectionRefusedError(f"cannot connect to {path}")
        return super().info(path, **options)


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fsspec.register_implementation("web", WebServer, clobber=True)
    yield
    WebServer.store.clear()
    monkeypatch.undo()


@pytest.mark.parametrize("kind", IOS)
@pytest.mark.parametrize("name", ["a#b?c.ckpt", "epoch[12].ckpt", "x*.ckpt", "100%.ckpt", "a%20b.ckpt", "ä ö.ckpt"])
def test_names_with_any_character(kind: Callable[[], CheckpointIO], name: str, tmp_path: Path) -> None:
    """They are names and no patterns: neither of files nor of URLs; and what a pattern would match is left alone."""
    for top in (f"memory://{tmp_path.name}", f"memory://{tmp_path.name}-[ab]*", str(tmp_path / "d")):
        others = [f"{top}/{other}" for other in ("epoch1.ckpt", "x1.ckpt", "a#bbc.ckpt")]
        for number, other in enumerate(others):
            kind().save_checkpoint(state(number), other)
        for number in (7, 8):
            kind().save_checkpoint(state(number), f"{top}/{name}")
        assert str(latest(top)) == f"{top}/{name}"
        assert torch.equal(kind().load_checkpoint(f"{top}/{name}")["x"], state(8)["x"])
        kind().remove_checkpoint(f"{top}/{name}")
        for number, other in enumerate(others):
            assert torch.equal(kind().load_checkpoint(other)["x"], state(number)["x"])


@pytest.mark.parametrize("kind", IOS)
def test_a_list_without_sizes(kind: Callable[[], CheckpointIO]) -> None:
    """The server is asked for the size of each file: none is said to be damaged."""
    kind().save_checkpoint(state(1), "web://run/c")
    assert torch.equal(kind().load_checkpoint("web://run/c")["x"], state(1)["x"])
    assert latest("web://run") == "web://run/c"


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no folder without checkpoints, nor a checkpoint that was not committed."""
    TorchCheckpointIO().save_checkpoint(state(1), "web://run/c")
    monkeypatch.setattr(WebServer, "is_reached", False)
    with pytest.raises(CheckpointError, match=r"web://run/c cannot be read: ConnectionRefusedError: cannot connect"):
        TorchCheckpointIO().load_checkpoint("web://run/c")
    with pytest.raises(CheckpointError, match=r"web://run cannot be read: ConnectionRefusedError: cannot connect"):
        latest("web://run")
    monkeypatch.undo()
    fsspec.register_implementation("web", WebServer, clobber=True)
    with pytest.raises(CheckpointError, match="is not a committed checkpoint"):
        TorchCheckpointIO().load_checkpoint("web://run/absent")
    assert latest("web://absent") is None
