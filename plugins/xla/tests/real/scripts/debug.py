"""A run under xla_debug."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.problem import OPTIONS, Classifier, furthest, loader, net, plain_losses

from torch_hal import Trainer

module = Classifier()
Trainer(accelerator="xla", devices=1, strategy="xla_debug", **OPTIONS).fit(module, loader())
told = {"furthest": furthest(module.losses, plain_losses(net())), "left": os.environ.get("PT_XLA_DEBUG")}
print(json.dumps(told))
