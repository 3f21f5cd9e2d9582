"""Copies to a device with streams, which are played here: this machine has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from core.data import DataSettings, prepare_loader, transfer

from .loaders import Numbers, strategy


class Streams:
    """What a device module has of streams, and what was done with them."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.entered: Any = "main"

    def Stream(self, device: torch.device) -> Any:  # noqa: N802  torch's name
        return "side"

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.entered = stream
        yield
        self.entered = "main"

    def current_stream(self, device: torch.device) -> Streams:
        return self

    def wait_stream(self, stream: Any) -> None:
        self.said.append(f"main waits for {stream}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Those of the device type ``meta``."""
    streams = Streams()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    monkeypatch.setattr(transfer, "device_function", lambda device_type, name: getattr(streams, name))
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: streams.said.append("recorded"))
    move = transfer.Transfer._copy

    def copy(self: transfer.Transfer, tensor: Tensor) -> Tensor:
        streams.said.append(f"copy {int(tensor[0])} on {streams.entered}")
        return move(self, tensor)

    monkeypatch.setattr(transfer.Transfer, "_copy", copy)
    return streams


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_is_copied_on_a_separate_stream(workers: int, streams: Streams) -> None:
    """The step waits for it on the device; where workers have the next batch ready, that copy has begun by then."""
    loader = prepare_loader(DataLoader(Numbers(3), 1, num_workers=workers), strategy(1, 0, "meta"))
    for number, batch in enumerate(loader):
        assert batch.device.type == "meta"
        streams.said.append(f"step {number}")
    ready = ["main waits for side", "recorded"]
    copies = [f"copy {number} on side" for number in range(3)]
    if workers:
        expected = [*copies[:2], *ready, "step 0", copies[2], *ready, "step 1", *ready, "step 2"]
    else:
        expected = [said for number in range(3) for said in (copies[number], *ready, f"step {number}")]
    assert streams.said == expected


def test_copies_that_block(streams: Streams) -> None:
    """Are made on the stream that computes."""
    settings = DataSettings(non_blocking=False)
    loader = prepare_loader(DataLoader(Numbers(2), 1), strategy(1, 0, "meta"), settings=settings)
    assert len(list(loader)) == 2
    assert streams.said == ["copy 0 on main", "copy 1 on main"]


def test_the_position_counts_what_was_handed_out(streams: Streams) -> None:
    """Not what was read ahead."""
    loader = prepare_loader(DataLoader(Numbers(4), 1, num_workers=1), strategy(1, 0, "meta"))
    for number, _ in enumerate(loader, 1):
        assert loader.state_dict()["batches"] == loader.batches_taken == number
        assert loader.end_of_dataloader == (number == 4)
