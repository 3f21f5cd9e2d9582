"""Train on two cards, and then by hand under DistributedDataParallel on the CPU. Arguments: strategy, precision."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from core import Trainer

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.problem import OPTIONS, Classifier, loader, losses_by_hand


class Compared(Classifier):
    """Compares its losses in the process that has them."""

    def on_fit_end(self) -> None:
        """Train the same by hand, in a group of the same processes."""
        rank = dist.get_rank()
        assert dist.get_backend() == "accl"
        assert self.seen == {f"acme:{rank}", "float32" if precision == "32-true" else "bfloat16"}, self.seen
        autocast = None if precision == "32-true" else torch.bfloat16
        # Bound to a card, torch refuses a group that has no backend for cards.
        gloo = dist.new_group(backend="cpu:gloo,acme:accl")
        expected = losses_by_hand(
            DistributedDataParallel(Classifier().net, process_group=gloo), autocast, rank, dist.get_world_size()
        )
        assert len(expected) == 8
        assert max(abs(a - b) for a, b in zip(self.losses, expected, strict=True)) <= 1e-6, (self.losses, expected)
        print(f"rank {rank} equal", flush=True)


strategy, precision = sys.argv[1:]

if __name__ == "__main__":
    trainer = Trainer(accelerator="acme", devices=2, strategy=strategy, precision=precision, **OPTIONS)
    trainer.fit(Compared(), loader())
