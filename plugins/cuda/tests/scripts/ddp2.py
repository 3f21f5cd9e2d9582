"""Train by ddp2 on this machine's simulated devices, as one of two machines; print what came out as JSON."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from torch_hal import Trainer

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.problem import OPTIONS, Classifier, loader


class Told(Classifier):
    """Says in the process that has it what it saw and became."""

    def on_fit_end(self) -> None:
        """Print it."""
        result = {
            "parameters": torch.cat([parameter.detach().flatten().cpu() for parameter in self.parameters()]).tolist(),
            "seen": sorted(set(self.seen)),
            "backend": dist.get_backend(),
            "world_size": dist.get_world_size(),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    arguments = json.loads(sys.argv[1])
    trainer = Trainer(accelerator="acme", strategy="ddp2", devices=2, **arguments, **OPTIONS)
    trainer.fit(Told(), loader())
