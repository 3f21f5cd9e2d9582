"""Models prepared one after another: what each of two processes keeps of those that the user has dropped."""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from problem import say
from torch import nn
from torch_hal_fsdp import FSDPStrategy

from torch_hal import Runtime

SIZE = 1000
MODELS = 20


def resident() -> int:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def communicating_threads() -> int:
    """The threads of this process that gloo has started."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
            count += "gloo" in (task / "comm").read_text()
    return count


def step(runtime: Runtime, model: nn.Module, optimizer: torch.optim.Optimizer, width: int) -> None:
    runtime.backward(model(torch.ones(2, width)).mean())
    optimizer.step()
    optimizer.zero_grad()


def one_after_another(runtime: Runtime) -> dict[str, Any]:
    """How many are alive at the end, on each rank, and the memory after the fifth and the last."""
    references: list[Any] = []
    memory = []
    for _ in range(MODELS):
        module = nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(2)))
        model, optimizer = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
        step(runtime, model, optimizer, SIZE)
        references += [weakref.ref(obj) for obj in (module, *module, *module.parameters(), optimizer)]
        del module, model, optimizer
        gc.collect()
        memory.append(resident())
    alive = sum(reference() is not None for reference in references)
    return {"alive": alive, "memory": [memory[4], memory[-1]]}


def main() -> None:
    """Several models are dropped, another one and a part of a model are kept until after the run."""
    with Runtime(accelerator="cpu", strategy=FSDPStrategy(reshard_after_forward=False), devices=2) as runtime:
        facts = one_after_another(runtime)
        own = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        whole = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        runtime.prepare(whole)(torch.ones(1, 4))
        part = whole[0]
        del whole
        gc.collect()
        step(runtime, model, optimizer, 4)
        facts["during"] = communicating_threads()
    facts["after"] = communicating_threads()
    del part
    with Runtime(accelerator="cpu", strategy=FSDPStrategy(reshard_after_forward=False), devices=2) as runtime:
        model, optimizer = runtime.prepare(model, optimizer)
        step(runtime, model, optimizer, 4)
        say(runtime, {"ranks": runtime.strategy.all_gather_object(facts)})


if __name__ == "__main__":
    main()
