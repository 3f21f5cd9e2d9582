"""Checksums that a thread computes while a file is written or read."""

from __future__ import annotations

import io
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python

from core.checkpoints import TorchCheckpointIO, read_manifest
from core.checkpoints.checksums import SummedFile, checksum_of, read_while_verifying
from core.errors import CheckpointError

LARGE = 1 << 21


def test_pieces_of_all_sizes() -> None:
    """Small ones are summed at once, large ones by the thread; the sum is that of what is in the file, in order."""
    pieces = [b"a", b"b" * LARGE, b"", b"c" * (LARGE + 1), b"d" * 100, b"e" * (LARGE - 1)]
    file = io.BytesIO()
    with ThreadPoolExecutor(1) as thread:
        summed = SummedFile(file, thread)
        for piece in pieces:
            assert summed.write(memoryview(piece)) == len(piece)
    content = b"".join(pieces)
    assert (file.getvalue(), summed.size, summed.checksum) == (content, len(content), f"{zlib.crc32(content):08x}")


def test_the_sum_of_a_part(tmp_path: Path) -> None:
    """Of the first bytes, where a file has a manifest behind them."""
    content = bytes(range(256)) * 9000
    (tmp_path / "f").write_bytes(content)
    for size in (0, 1, 1 << 20, (1 << 20) + 1, len(content), len(content) + 5):
        with (tmp_path / "f").open("rb", buffering=0) as file:
            assert checksum_of(file, size) == f"{zlib.crc32(content[:size]):08x}"


class Held(io.BytesIO):
    """A file of which a write ends with an interrupt, while the thread is at work."""

    def write(self, data: Any, /) -> int:
        raise KeyboardInterrupt


def test_an_interrupt_waits_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads memory that torch frees then."""
    ended = threading.Event()

    def slow(data: Any, before: int) -> int:
        time.sleep(0.2)
        ended.set()
        return before

    monkeypatch.setattr(zlib, "crc32", slow)
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(KeyboardInterrupt):
            SummedFile(Held(), thread).write(memoryview(bytes(LARGE)))
        assert ended.is_set()


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        raise error

    return function


def test_damage_is_the_error() -> None:
    """Not what reading damaged bytes has raised; which is the error if nothing is damaged."""
    damage, garbled = CheckpointError("damaged"), ValueError("garbled")
    for read in (lambda: 1, raising(garbled)):
        with pytest.raises(CheckpointError, match="damaged") as caught:
            read_while_verifying(raising(damage), read)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    with pytest.raises(ValueError, match="garbled"):
        read_while_verifying(lambda stop: None, raising(garbled))
    assert read_while_verifying(lambda stop: None, lambda: 7) == 7


def test_an_interrupt_does_not_wait_for_the_rest_of_a_file(tmp_path: Path) -> None:
    """The thread stops after the part that it reads."""
    stopped: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        read_while_verifying(lambda stop: stopped.append(stop.wait(60)), raising(KeyboardInterrupt()))
    assert stopped == [True]
    stop = threading.Event()
    stop.set()
    with Path("/dev/zero").open("rb", buffering=0) as endless:
        checksum_of(endless, 1 << 60, stop)


AT_EXIT = """
import atexit, sys, torch
from core.checkpoints import TorchCheckpointIO

def save():
    TorchCheckpointIO().save_checkpoint({"x": torch.ones(1 << 20)}, sys.argv[1])
    assert TorchCheckpointIO().load_checkpoint(sys.argv[1])["x"].sum() == 1 << 20
    print("saved")

atexit.register(save)
"""


def test_a_save_while_the_interpreter_ends(tmp_path: Path) -> None:
    """It starts no more threads then."""
    assert run_python("-c", AT_EXIT, tmp_path / "c", cwd=tmp_path).stdout.strip() == "saved"
    assert read_manifest(tmp_path / "c").sequence == 1


@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 0.999])
def test_one_bit_of_a_large_tensor(place: float, tmp_path: Path) -> None:
    """Found wherever it is, though it makes no difference to torch."""
    path = tmp_path / "c"
    TorchCheckpointIO().save_checkpoint({"x": torch.zeros(1 << 20)}, path)
    with path.open("r+b") as file:
        file.seek(int(4096 + place * (4 << 20)))
        byte = file.read(1)[0]
        file.seek(-1, io.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CheckpointError, match="is damaged: its CRC-32 is"):
        TorchCheckpointIO().load_checkpoint(path)
