"""Models prepared one after another, and two Runtimes at a time. Usage: lifetimes.py PROCESSES STRATEGY"""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from core import Runtime
from core.errors import ConfigurationError
from core.strategies import DDPStrategy

SIZE = 1000
MODELS = 20


class Net(nn.Module):
    """With its own attributes."""

    kind = "net"

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)
        self.temperature = 1.0

    def forward(self, inputs: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)
        return outputs * self.temperature * factor

    def loss(self, inputs: torch.Tensor) -> torch.Tensor:
        """Calls itself: the prepared forward pass."""
        outputs: torch.Tensor = self(inputs)
        return outputs.mean()


def resident() -> int:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def models_one_after_another(runtime: Runtime) -> dict[str, Any]:
    """Which of them are alive at the end, and the memory after the fifth and the last."""
    references: list[Any] = []
    memory = []
    for _ in range(MODELS):
        module = Net(SIZE)
        model, optimizer = runtime.prepare(module, SGD(module.parameters(), lr=0.1, momentum=0.9))
        runtime.backward(model(torch.ones(2, SIZE)).mean())
        optimizer.step()
        references += [weakref.ref(obj) for obj in (module, runtime.strategy_module(model), optimizer)]
        del module, model, optimizer
        gc.collect()
        memory.append(resident())
    return {"alive": sum(reference() is not None for reference in references), "memory": [memory[4], memory[-1]]}


def gradient_of_mean(runtime: Runtime, model: nn.Module) -> float:
    """1.5 if the gradients of two processes, 1 and 2, are averaged."""
    model.zero_grad()
    runtime.backward(model(torch.ones(1, 1) * (1 + runtime.process_index)).sum())
    (weight, *_) = model.parameters()
    assert weight.grad is not None
    return float(weight.grad)


def two_at_a_time(first: Runtime, processes: int, strategy: str) -> dict[str, Any]:
    """What each computes while both are live, and after one was torn down."""
    second = Runtime(accelerator="cpu", strategy=strategy, devices=processes, precision="bf16-mixed")
    models = [runtime.prepare(nn.Linear(1, 1, bias=False)) for runtime in (first, second)]
    both = [gradient_of_mean(*pair) for pair in zip((first, second), models, strict=True)]
    threads = [torch.get_num_threads()]
    refused = ""
    try:
        Runtime(accelerator="cpu", strategy=DDPStrategy(process_group_backend="cpu:gloo"), devices=processes).launch()
    except ConfigurationError as error:
        refused = str(error)
    first.teardown()
    threads.append(torch.get_num_threads())
    after = gradient_of_mean(second, models[1])
    gathered = second.gather(torch.tensor([second.process_index])).tolist()
    second.teardown()
    threads.append(torch.get_num_threads())
    second.launch()
    again = gradient_of_mean(second, second.prepare(nn.Linear(1, 1, bias=False)))
    return {"both": both, "after": after, "gathered": gathered, "again": again, "refused": refused, "threads": threads}


def users_own(runtime: Runtime) -> dict[str, Any]:
    """What a prepared module shows of the user's."""
    module = Net()
    model = runtime.prepare(module)
    model.temperature = 2.0
    del model.temperature
    model.temperature = 3.0
    inputs = torch.ones(1, 4) * (1 + runtime.process_index)
    runtime.backward(model.loss(inputs))
    gradients = runtime.gather(module.layer.weight.grad.flatten()[:1])  # type: ignore[union-attr]
    compiled = torch.compile(model, backend="eager")
    model.eval()
    with torch.no_grad():
        outputs = module(inputs, factor=2.0)
        equal = [
            torch.equal(other(inputs, factor=2.0), outputs)
            for other in (model, compiled, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model))
        ]
    runtime.strategy_module(model).zero_grad()
    return {
        "keys": list(model.state_dict()),
        "names": [name for name, _ in model.named_parameters()],
        "modules": [name for name, _ in model.named_modules()],
        "attributes": [model.kind, model.temperature, module.temperature],
        "is": [isinstance(model, Net), runtime.unwrap_model(model) is module, module.training],
        "equal": equal,
        "gradients": gradients.tolist(),
    }


def main() -> None:
    """Everything in one run."""
    processes, strategy = int(sys.argv[1]), sys.argv[2]
    runtime = Runtime(accelerator="cpu", strategy=strategy, devices=processes)
    facts = {"models": models_one_after_another(runtime), "own": users_own(runtime)}
    facts["two"] = two_at_a_time(runtime, processes, strategy)
    Path(os.environ["OUT"], f"rank{runtime.process_index}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
