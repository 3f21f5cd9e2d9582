"""Three processes of ``ddp_sharded`` save twice: the memory that each takes, and whether the state is Adam's own.

``said.json`` has by rank the most that a process took in addition in each save, as a multiple of the largest file.
"""

import json
import os
from pathlib import Path

import torch
from memory_of_saves import peak_of
from torch import nn

from core import Runtime

OUT = Path(os.environ["OUT"])


def network() -> nn.Module:
    """Its parameters do not divide by three; one is in another memory format."""
    torch.manual_seed(1)
    layers = [nn.Linear(900, 900) for _ in range(5)]
    convolution = nn.Conv2d(4, 60, 8)
    convolution.weight.data = convolution.weight.data.to(memory_format=torch.channels_last)
    return nn.Sequential(*layers, convolution)


def step(model: nn.Module, number: int, optimizer: torch.optim.Optimizer) -> None:
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 * (index + number))
    optimizer.step()


torch.set_num_threads(1)
runtime = Runtime(accelerator="cpu", strategy="ddp_sharded", devices=3)
runtime.launch()
alone = network()
truth = torch.optim.Adam(alone.parameters(), lr=0.01)
module = network()
model, optimizer = runtime.prepare(module, torch.optim.Adam(module.parameters(), lr=0.01))
peaks, equal = [], []
for number in range(1, 4):
    step(alone, number, truth)
    step(model, number, optimizer)
    path = OUT / f"step={number}"

    def save(path: Path = path) -> None:
        runtime.save({"model": model, "optimizer": optimizer}, path)

    peaks.append(peak_of(save))
    loaded = runtime.strategy.load_checkpoint(path)["optimizer"]
    expected = truth.state_dict()
    equal.append(loaded["state"].keys() == expected["state"].keys())
    for index, values in expected["state"].items():
        for name, value in values.items():
            found = loaded["state"][index][name]
            equal.append(torch.equal(found, value) and found.stride() == value.stride())
largest = (OUT / "step=3").stat().st_size
said = runtime.gather_object([{"peaks": [peak / largest for peak in peaks[1:]], "is_equal": all(equal)}])
if runtime.is_main_process:
    (OUT / "said.json").write_text(json.dumps({"processes": said}))
runtime.wait_for_everyone()
