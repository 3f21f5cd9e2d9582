"""A run that is continued by another number of processes, and one that process 0 alone has saved.

``resharding.py PHASE WORLD`` leaves what each process saw.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Runtime, set_seed
from core.data import drop_padding
from core.errors import CheckpointError
from core.runtime.checkpoint import run_state

OUT = Path(os.environ["OUT"])
run_state.STATES_SECONDS = 0.5  # type: ignore[attr-defined]


def main(phase: str, world: int) -> None:
    runtime = Runtime(accelerator="cpu", devices=world)
    runtime.launch()
    set_seed(7 if phase == "first" else 8, device_specific=True)
    own = nn.Linear(1, 1)
    data: Any = range(50)
    loader = DataLoader(data, 4, shuffle=True)
    model, optimizer, loader = runtime.prepare(own, torch.optim.SGD(own.parameters(), 0.01), loader)
    said: dict[str, Any] = {"seen": [], "rank": runtime.process_index}
    is_main = runtime.is_main_process

    def train(stop: int | None = None) -> None:
        for number, batch in enumerate(loader, 1):
            said["seen"] += drop_padding(runtime.gather(batch), loader.real_samples).tolist()
            runtime.backward(model(batch.float()[:, None]).mean())
            optimizer.step()
            optimizer.zero_grad()
            if number == stop:
                return

    def draws() -> list[float]:
        return [random.random(), float(torch.rand(()))]

    if phase == "first":
        train(stop=2)
        runtime.save_state(OUT / "all")
        if is_main:
            runtime.save_state(OUT / "main")
        said["draws"] = draws()
        said["weight"] = float(own.weight)
    elif phase == "again":
        runtime.load_state(OUT / "main")
        said["draws"], said["weight"] = draws(), float(own.weight)
        train()
    else:
        try:
            runtime.load_state(OUT / "all")
        except CheckpointError as error:
            said["refused"] = str(error)
        runtime.load_state(OUT / "all", reshard=True)
        said["draws"], said["weight"] = draws(), float(own.weight)
        train()
    (OUT / f"rank{runtime.process_index}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
