"""A training step that skips every other batch, in both processes, where gradients of two batches make a step."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer


class Skipping(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        loss: Tensor = self.layer(batch[0]).mean()
        return None if batch_idx % 2 else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_epochs=1,
    accumulate_grad_batches=2,
    enable_checkpointing=False,
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Skipping(), DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4))
