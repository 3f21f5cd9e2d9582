"""DDP and the stages of DeepSpeed in your own loops, one after another in the same processes."""

from __future__ import annotations

import gc
import sys
from typing import Any

from problem import WHOLE, bytes_held, evaluate, make, say, train
from torch_hal_deepspeed import DeepSpeedStrategy

from torch_hal import Runtime
from torch_hal.strategies import DDPStrategy

PROCESSES = int(sys.argv[1])
NAMES = sys.argv[2:]
said: dict[str, Any] = {}


def run(name: str, strategy: Any, precision: str = "auto", divided: bool = False, **work: Any) -> None:
    """Train with one strategy; note losses, and what evaluation gives."""
    if NAMES and name not in NAMES:
        return
    with Runtime(accelerator="cpu", strategy=strategy, devices=PROCESSES, precision=precision) as runtime:
        made = make(runtime, divided=divided)
        results: dict[str, Any] = {"losses": train(runtime, made, **work)}
        results["evaluated"] = evaluate(runtime, made[1])
        results["afterwards"] = train(runtime, made, steps=1, first=50)
        results["precision"] = runtime.plan.precision.name
        said[name] = results
        del made
    gc.collect()


WORKS: dict[str, dict[str, Any]] = {"": {}, " accumulated": {"accumulate": 2}, " clipped": {"clip": 0.1}}
for suffix, options in WORKS.items():
    run(f"ddp{suffix}", DDPStrategy(), **options)
    for stage in range(4):
        run(f"stage {stage}{suffix}", DeepSpeedStrategy(stage=stage, config=WHOLE if stage else None), **options)
for stage in (1, 2, 3):
    parameters = "cpu" if stage == 3 else None
    offload: dict[str, Any] = {"stage": stage, "offload_optimizer": "cpu", "offload_parameters": parameters}
    run(f"offload {stage}", DeepSpeedStrategy(**offload))
    run(f"offload {stage} clipped", DeepSpeedStrategy(**offload), clip=0.1)
for precision in ("bf16-mixed", "bf16-true"):
    run(f"ddp {precision}", DDPStrategy(), precision)
    for stage in range(4):
        run(f"stage {stage} {precision}", DeepSpeedStrategy(stage=stage), precision)
run("made divided", DeepSpeedStrategy(stage=3, config=WHOLE), divided=True)
run("persistent", DeepSpeedStrategy(stage=3))
for stage in (0, 1, 3):
    run(f"recomputed {stage}", DeepSpeedStrategy(stage=stage, activation_checkpointing=["Block"]))
run("config", DeepSpeedStrategy(config={**WHOLE, "bf16": {"enabled": True}, "gradient_clipping": 0.1}))
for name in ("ddp", "1", "2", "3"):
    measured: Any = DDPStrategy() if name == "ddp" else DeepSpeedStrategy(stage=int(name), config=WHOLE)
    with Runtime(accelerator="cpu", strategy=measured, devices=PROCESSES) as runtime:
        deep = make(runtime, width=64, blocks=40)
        train(runtime, deep, steps=1)
        said[f"bytes {name}"] = runtime.strategy.all_gather_object(bytes_held(runtime, deep))
        del deep
with Runtime(accelerator="cpu", strategy=DDPStrategy(), devices=PROCESSES) as last:
    last.launch()
    say(last, said)
