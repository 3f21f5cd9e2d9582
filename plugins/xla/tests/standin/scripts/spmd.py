"""SPMD mode does not end: a separate process trains in it, and tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
import stand_ins
from tests.problem import OPTIONS, Classifier, loader

from torch_hal import Trainer
from torch_hal.errors import ConfigurationError

module = Classifier(note=stand_ins.calls.append)
trainer = Trainer(accelerator="xla", strategy="xla_spmd", **OPTIONS)
trainer.fit(module, loader())
calls = stand_ins.calls[:]
afterwards = ""
try:
    Trainer(accelerator="xla", devices=1, strategy="single_xla", **OPTIONS).fit(Classifier(), loader())
except ConfigurationError as error:
    afterwards = str(error)
told = {
    "calls": calls[calls.index("xs.mark_sharding('data', None)") : calls.index("xm.get_rng_state")],
    "devices": trainer.runtime.plan.devices,
    "world_size": trainer.runtime.plan.world_size,
    "losses": [float(loss) for loss in module.losses],
    "afterwards": afterwards,
}
print(json.dumps(told))
