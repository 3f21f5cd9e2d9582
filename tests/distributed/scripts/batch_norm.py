"""Three processes with batches of three sizes and sync_batchnorm=True; each leaves its module."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from core import Module, Trainer

SIZES = (5, 2, 3)
STEPS = 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def batches() -> list[Tensor]:
    """The joined batch of each step."""
    torch.manual_seed(1)
    return [torch.randn(sum(SIZES), 6) for _ in range(STEPS)]


class Normalized(Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        # The mean of the processes' losses is that of the joined batch.
        loss: Tensor = self.network(batch).square().sum() / sum(SIZES) * len(SIZES)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_fit_end(self) -> None:
        out, rank = Path(os.environ["OUT"]), self.trainer.global_rank
        torch.save(self.network.state_dict(), out / f"rank{rank}.pt")
        (out / f"class{rank}").write_text(type(self.network[1]).__mro__[1].__name__)


def main() -> None:
    module = Normalized()
    trainer = Trainer(
        strategy=sys.argv[1],
        devices=3,
        accelerator="cpu",
        max_epochs=1,
        sync_batchnorm=True,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module, Own(trainer))
    assert type(module.network[1]) is nn.BatchNorm1d


class Own:
    """This process's part of each batch."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Any:
        rank = self.trainer.global_rank
        return iter([torch.split(batch, list(SIZES))[rank] for batch in batches()])


if __name__ == "__main__":
    main()
