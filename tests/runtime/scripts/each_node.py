"""Two machines with two processes each, which share no file system, save and continue. Usage: each_node.py EACH

The folder of the project is named by the working directory, which differs between the machines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import ProjectConfiguration, Runtime
from core.errors import CheckpointError


def main() -> None:
    """Train on to the end of an epoch, twice: without a stop, and from a checkpoint in the middle of it."""
    project = ProjectConfiguration(
        project_dir="/proc/self/cwd/project",
        automatic_checkpoint_naming=True,
        total_limit=1,
        save_on_each_node=sys.argv[1] == "each",
    )
    runtime = Runtime(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", project_config=project)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    items = TensorDataset(torch.randn(26, 4, generator=torch.Generator().manual_seed(1)))
    model, optimizer, loader = runtime.prepare(
        module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), DataLoader(items, 2, shuffle=True)
    )
    ends: list[list[float]] = []
    error = ""

    def train(saves: bool) -> None:
        for number, (inputs,) in enumerate(loader):
            runtime.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if saves and number < 2:
                runtime.save_state()
        ends.append([value for parameter in module.parameters() for value in parameter.detach().flatten().tolist()])

    runtime.save({"rank": torch.tensor(runtime.process_index)}, "saved.pt")
    runtime.wait_for_everyone()
    train(saves=True)
    try:
        runtime.load_state()
        train(saves=False)
    except CheckpointError as missing:
        error = str(missing)
    found = {"ends": ends, "error": error}
    Path(f"rank{runtime.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
