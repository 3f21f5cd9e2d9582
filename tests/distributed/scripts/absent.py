"""34 items in batches of 8 with ``even_batches=False`` on three processes: the last process has one batch less."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from core import Runtime
from core.data import DataSettings
from core.errors import ConfigurationError

ITEMS = 34


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(ITEMS))


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def collected(runtime: Runtime, loader: Any) -> list[int]:
    """The items of all processes, gathered after the loop."""
    return sorted(runtime.gather_object([int(item) for batch in loader for item in batch]))


def gathered(runtime: Runtime, loader: Any) -> dict[str, Any]:
    """What is gathered in the loop before the last global batch, and the error there."""
    items: list[int] = []
    error = ""
    try:
        for batch in loader:
            items += runtime.gather_for_metrics(batch).tolist()
    except ConfigurationError as refused:
        error = str(refused)
    return {"items": items, "error": error}


def warned(runtime: Runtime, loader: Any) -> list[str]:
    """The warnings of a process that calls another collective there; the last process calls it too, for its part."""
    handler = Warnings()
    logging.getLogger("torch_hal").addHandler(handler)
    steps = 0
    for _ in loader:
        runtime.reduce(torch.ones(1))
        steps += 1
    for _ in range(2 - steps):
        runtime.reduce(torch.ones(1))
    logging.getLogger("torch_hal").removeHandler(handler)
    return handler.texts


def padded(runtime: Runtime) -> list[str]:
    """The warnings of a loop that gathers one value for each batch, the last of which is padded."""
    handler = Warnings()
    logging.getLogger("torch_hal").addHandler(handler)
    for items in (24, 27, ITEMS):  # complete batches only; divided evenly; with padding
        for batch in runtime.prepare_data_loader(DataLoader(range(items), 8), evaluation=True):  # type: ignore[arg-type]
            mean = batch.float().mean()
            runtime.gather_for_metrics((batch, mean[None]) if items < ITEMS else {"each": batch, "mean": mean})
    logging.getLogger("torch_hal").removeHandler(handler)
    return handler.texts


def emptied(runtime: Runtime) -> list[str]:
    """The warnings of loaders that one process would have batches of, of which three may have none."""
    handler = Warnings()
    logging.getLogger("torch_hal").addHandler(handler)
    for items, drop_last in ((23, True), (24, True), (7, True), (23, False)):
        runtime.prepare_data_loader(DataLoader(range(items), 8, drop_last=drop_last))  # type: ignore[arg-type]
    logging.getLogger("torch_hal").removeHandler(handler)
    return handler.texts


def main() -> None:
    runtime = Runtime(accelerator="cpu", strategy="ddp", devices=3)
    uneven = DataSettings(even_batches=False)
    found: dict[str, Any] = {}
    for kind in ("map", "evaluation", "stream", "dispatched"):
        dataset: Any = Stream() if kind == "stream" else range(ITEMS)
        settings = DataSettings(even_batches=False, dispatch_batches=True) if kind == "dispatched" else uneven
        loader = runtime.prepare_data_loader(
            DataLoader(dataset, batch_size=8), evaluation=kind == "evaluation", settings=settings
        )
        found[kind] = {**gathered(runtime, loader), "collected": collected(runtime, loader)}
    loader = runtime.prepare_data_loader(DataLoader(range(ITEMS), batch_size=8), settings=uneven)  # type: ignore[arg-type]
    found["warnings"] = warned(runtime, loader)
    found["padded"], found["emptied"] = padded(runtime), emptied(runtime)
    Path(os.environ["OUT"], f"rank{runtime.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
