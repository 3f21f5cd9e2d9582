"""A model that is made divided, loaded and saved without an optimizer, on two processes."""

from __future__ import annotations

from typing import Any

import torch
from problem import MLP, OUT, WHOLE, batch_of, make, say, train
from torch_hal_deepspeed import DeepSpeedStrategy

from torch_hal import Runtime


def run() -> Runtime:
    return Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=3, config=WHOLE), devices=2)


@torch.no_grad()
def outputs(model: Any) -> list[float]:
    found: list[float] = model(batch_of(1000)[0]).flatten().tolist()
    return found


said: dict[str, list[float]] = {}
with run() as runtime:
    made = make(runtime)
    train(runtime, made, steps=2)
    runtime.save({"model": made[1]}, OUT / "trained")
    said["trained"] = outputs(made[1])
with run() as runtime:
    runtime.launch()
    strategy: Any = runtime.strategy
    with strategy.init_module():
        own = MLP()
    model = runtime.prepare(own)
    runtime.load(OUT / "trained", {"model": model})
    runtime.save({"model": model}, OUT / "before")
    said["loaded"] = outputs(model)
    runtime.save({"model": model}, OUT / "after")
for name in ("before", "after"):
    with run() as runtime:
        model = runtime.prepare(MLP())
        runtime.load(OUT / name, {"model": model})
        said[name] = outputs(model)
        say(runtime, said)
