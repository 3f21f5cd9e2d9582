"""How much of the copying from host to device a prepared loader hides; `gpu.py` starts it as a process of its own.

The same pinned batches are copied only, computed with only, both one after another, and both with a loader that
``Runtime.prepare`` returned. Hidden is the part of the shorter of the two that the loader saves.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from core import Runtime

__all__ = ["main"]

ROUNDS = 5


class Rows(Dataset[Tensor]):
    """``count`` rows of ``size`` numbers each, made once."""

    def __init__(self, count: int, size: int) -> None:
        self.rows = torch.randn(count, size)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self.rows[index] for index in indices]


def main() -> None:
    """Write one line of JSON."""
    options = json.loads(sys.argv[1])
    runtime = Runtime(accelerator=options["accelerator"], devices=1)
    device = runtime.device
    megabytes, count = int(options["megabytes"]), int(options["batches"])
    size, batch = 1024 * 256, megabytes  # a row is one MiB
    pins = device.type != "cpu"
    loader = DataLoader(Rows(batch * 2, size), batch_size=batch, pin_memory=pins)
    host = [each for each in loader for _ in range(count // 2)]
    weights = torch.randn(options["width"], options["width"], device=device)

    def compute(times: int) -> None:
        product = weights
        for _ in range(times):
            product = weights @ product * 1e-3

    def synchronized(action: Callable[[], Any]) -> float:
        seconds: list[float] = []
        for _ in range(ROUNDS + 1):
            wait(device)
            began = time.perf_counter()
            action()
            wait(device)
            seconds.append(time.perf_counter() - began)
        return sum(sorted(seconds[1:])[ROUNDS // 2 : ROUNDS // 2 + 1]) / count

    def over(source: Iterable[Tensor], work: Callable[[Tensor], Any]) -> Callable[[], None]:
        def run() -> None:
            for each in source:
                work(each)

        return run

    copying = synchronized(over(host, lambda rows: rows.to(device, non_blocking=True)))
    once = synchronized(over(host, lambda rows: compute(1)))
    times = max(round(copying / once), 1)  # as long as copying, where hiding it pays most
    computing = synchronized(over(host, lambda rows: compute(times)))

    def one_after_another(rows: Tensor) -> None:
        rows.to(device)
        compute(times)

    both = synchronized(over(host, one_after_another))
    prepared = runtime.prepare(DataLoader(cast(Any, host), batch_size=None, pin_memory=pins))
    overlapped = synchronized(over(prepared, lambda rows: compute(times)))
    hidden = (copying + computing - overlapped) / min(copying, computing) if pins else None
    figures = {"copy": copying, "compute": computing, "one after another": both, "prepared loader": overlapped}
    result: dict[str, float | None] = {
        f"{name.replace(' ', '_')}_milliseconds": seconds * 1e3 for name, seconds in figures.items()
    }
    result |= {"batch_megabytes": megabytes, "hidden_fraction": hidden}
    runtime.teardown()
    sys.stdout.write(json.dumps(result) + "\n")


def wait(device: torch.device) -> None:
    """Until the device has done what was asked."""
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize()


if __name__ == "__main__":
    main()
