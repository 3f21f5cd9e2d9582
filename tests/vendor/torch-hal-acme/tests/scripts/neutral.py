"""Train on Acme's cards unnamed, where only their torch backend is installed. Arguments: devices, precision."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from core import Trainer
from core.accelerators import TorchDeviceAccelerator

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.problem import OPTIONS, Classifier, loader, losses_by_hand

devices, precision = int(sys.argv[1]), sys.argv[2]
autocast = torch.bfloat16 if precision == "bf16-mixed" else None


class Compared(Classifier):
    """Compares its losses with the CPU's, in each process."""

    def on_fit_end(self) -> None:
        """Train the same by hand on the CPU."""
        rank = self.trainer.runtime.process_index
        assert self.seen == {f"acme:{rank}", str(autocast or torch.float32).removeprefix("torch.")}, self.seen
        net: nn.Module = Classifier().net
        if devices > 1:
            assert dist.get_backend() == "accl"
            net = DistributedDataParallel(net, process_group=dist.new_group(backend="cpu:gloo,acme:accl"))
        expected = losses_by_hand(net, autocast, rank, devices)
        difference = max(abs(a - b) for a, b in zip(self.losses, expected, strict=True))
        assert difference <= 1e-6, (self.losses, expected)
        print(f"process {rank} equal", flush=True)


if __name__ == "__main__":
    assert importlib.util.find_spec("torch_hal_acme") is None
    trainer = Trainer(devices=devices, precision=precision, **OPTIONS)
    assert trainer.plan.accelerator.name == "acme"
    assert isinstance(trainer.strategy.accelerator, TorchDeviceAccelerator)
    trainer.fit(Compared(), loader())
