"""Checkpoints of your own loop: ``saves.py save|load PROCESSES STAGE...``.

``as:STAGE`` after a stage loads with another one than it was saved with.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from problem import OUT, WHOLE, evaluate, make, train
from torch_hal_deepspeed import DeepSpeedStrategy

from torch_hal import Runtime

phase, processes, stages = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
said: dict[str, Any] = {}
rank = 0
for stage in stages:
    saved, _, used = stage.partition("as:")
    strategy = DeepSpeedStrategy(stage=int(used or saved), config=None if stage == "0" else WHOLE)
    with Runtime(accelerator="cpu", strategy=strategy, devices=processes) as runtime:
        made = make(runtime)
        own, model, optimizer, schedule = made
        path = OUT / f"saved-{saved}"
        parts = {"model": own, "optimizer": optimizer, "schedule": schedule}
        if phase == "save":
            train(runtime, made, steps=3)
            runtime.save({**parts, "note": "third"}, path)
            note = "third"
        else:
            note = runtime.load(path, parts)["note"]
        found = evaluate(runtime, model)
        losses = train(runtime, made, steps=3, first=3)
        whole = runtime.strategy.whole_module_state(own)
        said[stage] = {"evaluated": found, "losses": losses, "note": note, "names": sorted(whole)}
        rank = runtime.process_index
(OUT / f"{phase}-{processes}-{rank}.json").write_text(json.dumps(said))
