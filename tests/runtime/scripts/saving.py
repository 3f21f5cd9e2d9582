"""Three processes save with some of them absent; each writes what it saw into its own file."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from core import Runtime
from core.errors import CheckpointError
from core.strategies import partial_save

OUT = Path(os.environ["OUT"])
partial_save.NEEDED_SECONDS = 3.0  # type: ignore[attr-defined]


def timed(function: Any) -> tuple[float, str]:
    start, said = time.monotonic(), ""
    try:
        function()
    except CheckpointError as error:
        said = str(error)
    return time.monotonic() - start, said


def main(strategy: str) -> None:
    runtime = Runtime(accelerator="cpu", strategy=strategy, devices=3)
    runtime.launch()
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = runtime.prepare(model, optimizer)
    parts = {"model": model, "optimizer": optimizer}
    said: dict[str, Any] = {}

    def step() -> None:
        runtime.backward(model(torch.ones(2, 3)).sum())
        optimizer.step()
        optimizer.zero_grad()

    step()
    if runtime.is_main_process:
        said["main only"] = [timed(lambda: runtime.save(parts, OUT / "main")) for _ in range(3)]
    step()
    said["all"] = [timed(lambda: runtime.save(parts, OUT / "all")) for _ in range(3)]
    said["on the others"] = (OUT / "all").is_file()
    step()
    if runtime.process_index != 2:
        said["one is absent"] = timed(lambda: runtime.save(parts, OUT / "absent"))
    step()
    if runtime.process_index == 1:
        time.sleep(1.5)
    said["one is late"] = timed(lambda: runtime.save(parts, OUT / "late"))
    step()
    said["cannot be written"] = timed(lambda: runtime.save(parts, "/dev/null/c"))
    said["weights"] = next(model.parameters()).tolist()
    (OUT / f"rank{runtime.process_index}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
