"""Train on two devices that "auto" finds, and compare the losses with those of a plain loop on the CPU.

Arguments: the devices' type, and the collective backend.
"""

from __future__ import annotations

import sys

import torch.distributed as dist
from device_problem import OPTIONS, Classifier, loader, losses_on_the_cpu

from core import Trainer

DEVICE, COLLECTIVES = sys.argv[1:]


class Compared(Classifier):
    """Compares its losses in the process that has them."""

    def on_fit_end(self) -> None:
        """Everything was on the process's own device."""
        rank = dist.get_rank()
        assert self.seen == {f"{DEVICE}:{rank}"}, self.seen
        assert dist.get_backend() == COLLECTIVES
        expected = losses_on_the_cpu(rank, dist.get_world_size())
        assert max(abs(a - b) for a, b in zip(self.losses, expected, strict=True)) <= 1e-5, (self.losses, expected)
        print(f"rank {rank} equal", flush=True)


if __name__ == "__main__":
    Trainer(**OPTIONS).fit(Compared(), loader())
