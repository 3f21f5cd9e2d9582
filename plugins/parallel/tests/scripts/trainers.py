"""The Trainer: a Module that knows of no mesh is fitted, saved on one mesh, and resumed on another.

Arguments: the number of processes, and runs one after another: a mesh for two epochs, ``mesh+`` for four, and
``mesh<run`` for the last two of four, from the checkpoint of an earlier run, perhaps on other processes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from problem import LENGTH, OUT, VOCABULARY, Transformer, say
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_parallel import ModelParallelStrategy

import torch_hal
from torch_hal.callbacks import ModelCheckpoint

PROCESSES = int(sys.argv[1])
MESHES: dict[str, dict[str, Any]] = {
    "one": {},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "pipeline": {"pipeline": 2, "microbatches": 4},
    "interleaved": {"pipeline": 2, "schedule": "Interleaved1F1B"},
    "mixed": {"data": 2, "pipeline": 2, "microbatches": 2},
}


class Lesson(torch_hal.Module):
    """The transformer as a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer(noisy=bool(os.environ.get("NOISY")))

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> Tensor:
        loss = self._loss(batch)
        self.log("train", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        self.log("val", self._loss(batch))

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            said[f"{name} first"] = self.trainer.callback_metrics["train_epoch"].item()

    def _loss(self, batch: tuple[Tensor]) -> Tensor:
        text = batch[0]
        return cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def data(strategy_shards: int, seed: int, items: int = 64) -> DataLoader[Any]:
    text = torch.randint(VOCABULARY, (items, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(text), batch_size=16 // strategy_shards)


said: dict[str, Any] = {}
for name in sys.argv[2:]:
    mesh, _, source = name.partition("<")
    options = MESHES[mesh.rstrip("+")]
    shards = options.get("data", 1)
    strategy: Any = ModelParallelStrategy(**options) if options else "single_device"
    torch_hal.seed_everything(3)
    saving = ModelCheckpoint(OUT / mesh, filename="{epoch}", save_top_k=-1)
    trainer = torch_hal.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy=strategy,
        max_epochs=4 if source or name.endswith("+") else 2,
        gradient_clip_val=0.3,
        accumulate_grad_batches=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving],
    )
    module = Lesson()
    ckpt = str(OUT / source / "epoch=1.ckpt") if source else None
    trainer.fit(module, data(shards, 0), data(shards, 1), ckpt_path=ckpt)
    said[name] = {key: float(value) for key, value in trainer.callback_metrics.items()}

with torch_hal.Runtime(accelerator="cpu", devices=PROCESSES, strategy="ddp" if PROCESSES > 1 else "auto") as last:
    last.launch()
    say(last, said)
