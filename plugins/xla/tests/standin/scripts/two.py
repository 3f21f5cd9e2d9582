"""Two processes, started by torch_xla's stand-in, train with each front end; what they find is told as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
import stand_ins
import torch
from tests.problem import OPTIONS, Classifier, loader, net, sgd
from torch import nn

from torch_hal import Runtime, Trainer
from torch_hal.errors import ConfigurationError, LaunchError


def train(runtime: Runtime, accumulate: int) -> dict[str, Any]:
    """Your own loop; rank 1 begins with other parameters."""
    model: Any = net(norm=False)
    if runtime.process_index == 1:
        nn.init.zeros_(model[0].weight)
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *_: stand_ins.calls.append("step"))
    model, optimizer, batches = runtime.prepare(model, optimizer, loader())
    stand_ins.calls.clear()
    losses: list[torch.Tensor] = []
    for _ in range(OPTIONS["max_epochs"]):
        for index, (inputs, labels) in enumerate(batches):
            stand_ins.calls.append("forward")
            is_step = (index + 1) % accumulate == 0
            loss = nn.functional.cross_entropy(model(inputs), labels)
            if is_step:
                runtime.backward(loss / accumulate)
                optimizer.step()
                optimizer.zero_grad()
            else:
                with runtime.no_sync(model):
                    runtime.backward(loss / accumulate)
            losses.append(loss.detach())
    calls = [name for name in stand_ins.calls if not name.startswith("xr.")]
    return {
        "calls": calls,
        "losses": runtime.reduce(torch.stack(losses), "mean").tolist(),
        "device": str(runtime.device),
        "weights": [parameter.tolist() for parameter in model.parameters()],
    }


def collectives(runtime: Runtime) -> dict[str, Any]:
    """Each collective, by what comes of it."""
    rank, strategy = runtime.process_index, runtime.strategy
    own = torch.tensor([1.0, 5.0 * rank], device=runtime.device)
    try:
        runtime.gather(torch.zeros(rank + 1))
        differing = ""
    except ConfigurationError as error:
        differing = str(error)
    runtime.barrier()
    return {
        **{name: runtime.reduce(own, name).tolist() for name in ("mean", "sum", "min", "max", "product")},
        "mean_of_whole": runtime.reduce(torch.tensor(rank), "mean").tolist(),
        "own": own.tolist(),
        "gather": runtime.gather(own).tolist(),
        "broadcast": runtime.broadcast({"of": rank, "tensor": own}, 1)["tensor"].tolist(),
        "objects": strategy.all_gather_object({"rank": rank}),
        "differing": differing,
        "environment": strategy.cluster_environment.name,
        "ranks": [strategy.world_size, strategy.local_rank, strategy.node_rank, strategy.cluster_environment.num_nodes],
        "inside": Runtime(accelerator="xla", strategy="xla").plan.cluster_environment.name,
    }


def save(runtime: Runtime, path: str) -> None:
    """A checkpoint of what is on the device."""
    runtime.save({"weight": torch.ones(2, device=runtime.device)}, path)


def fail(runtime: Runtime) -> None:
    """Rank 1 raises while rank 0 waits for it."""
    if runtime.process_index == 1:
        raise ValueError("rank 1 has had enough")
    runtime.barrier()


def said_by(error: type[Exception], function: Any) -> str:
    """The message of the error that ``function`` raises."""
    try:
        function()
    except error as caught:
        return str(caught)
    return ""


def main(what: str, *arguments: str) -> dict[str, Any]:
    """One of the runs."""
    runtime = Runtime(accelerator="xla", strategy="xla", devices=2)
    if what == "runtime":
        return runtime.launch(train, int(arguments[0])) or {}
    if what == "collectives":
        return runtime.launch(collectives) or {}
    if what == "save":
        runtime.launch(save, arguments[0])
        return {}
    if what == "refusals":
        before = time.monotonic()
        return {
            "failed": said_by(LaunchError, lambda: runtime.launch(fail)),
            "seconds": time.monotonic() - before,
            "unpicklable": said_by(LaunchError, lambda: runtime.launch(lambda _: None)),
            "no function": said_by(LaunchError, runtime.launch),
        }
    module = Classifier(norm=False)
    trainer = Trainer(accelerator="xla", strategy="xla", devices="auto", gradient_clip_val=0.5, **OPTIONS)
    trainer.fit(module, loader())
    return {
        "launcher": trainer.runtime.plan.launcher,
        "group": trainer.runtime.plan.process_group_backend,
        "weights": [parameter.tolist() for parameter in module.parameters()],
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
