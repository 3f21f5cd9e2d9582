"""After a fit, the same Trainer and a fresh one validate, test, predict and fit further, on the same mesh.

Arguments: the number of processes, and meshes, such as ``data=2,pipeline=2``; ``one`` for a single process.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import LENGTH, OUT, VOCABULARY, Transformer, make, say, train
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_parallel import ModelParallelStrategy

import torch_hal
from torch_hal.callbacks import ModelCheckpoint

PROCESSES = int(sys.argv[1])
BATCH, TRAINED, UNSEEN = 12, 48, 31
"""Thirty-one texts are divided by no mesh."""


class Lesson(torch_hal.Module):
    """The transformer as a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer()

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch)

    def validation_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        self.log("val", self._loss(batch))

    def test_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        self.log("test", self._loss(batch))

    def predict_step(self, batch: tuple[Tensor], batch_idx: int) -> list[tuple[float, float]]:
        """A number that identifies each text, and one that depends on the model."""
        weights = torch.arange(LENGTH + 1, dtype=torch.float64)
        names = (batch[0] * weights).sum(1)
        found = self.model(batch[0][:, :-1]).double().square().mean((1, 2))
        return list(zip(names.tolist(), found.tolist(), strict=True))

    def _loss(self, batch: tuple[Tensor]) -> Tensor:
        text = batch[0]
        return cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data(seed: int, items: int, size: int) -> DataLoader[Any]:
    text = torch.randint(VOCABULARY, (items, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(text), batch_size=size)


def trainer_of(options: dict[str, Any], epochs: int, saving: Any = None) -> torch_hal.Trainer:
    strategy: Any = ModelParallelStrategy(**options) if options else "single_device"
    return torch_hal.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy=strategy,
        max_epochs=epochs,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        callbacks=[] if saving is None else [saving],
    )


def evaluated(trainer: torch_hal.Trainer, module: Lesson | None, unseen: Any, path: str | None) -> dict[str, Any]:
    """Metrics, and what is predicted for all texts by all processes."""
    found: dict[str, Any] = {}
    for verb in (trainer.validate, trainer.test):
        (metrics,) = verb(module, unseen, ckpt_path=path, verbose=False)
        found |= metrics
    own = [pair for batch in trainer.predict(module, unseen, ckpt_path=path) or () for pair in batch]
    (OUT / f"own {trainer.global_rank}").write_text(repr(own))
    with torch_hal.Runtime(
        accelerator="cpu", devices=PROCESSES, strategy="ddp" if PROCESSES > 1 else "auto"
    ) as runtime:
        runtime.launch()
        parts = runtime.strategy.all_gather_object(own) if PROCESSES > 1 else [own]
    return {**found, "predicted": sorted({tuple(pair) for part in parts for pair in part})}


def options_of(mesh: str) -> dict[str, Any]:
    pairs = (one.split("=") for one in mesh.split(",") if mesh != "one")
    return {name: value if name == "schedule" else int(value) for name, value in pairs}


def loop(options: dict[str, Any]) -> list[float]:
    """Two runs of an own loop, one after another, with the same model and optimizer; losses."""
    model, optimizer = make()
    losses: list[float] = []
    for first in (0, 2):
        strategy: Any = ModelParallelStrategy(**options) if options else "single_device"
        with torch_hal.Runtime(accelerator="cpu", devices=PROCESSES, strategy=strategy) as runtime:
            losses += train(runtime, *runtime.prepare(model, optimizer), first, 2, items=12)["losses"]
    return losses


said: dict[str, Any] = {}
for mesh in sys.argv[2:]:
    options = options_of(mesh)
    shards = options.get("data", 1)
    torch_hal.seed_everything(3)
    saving = ModelCheckpoint(OUT / mesh, filename="{epoch}", save_top_k=-1)
    trainer, module = trainer_of(options, 2, saving), Lesson()
    # A pipeline takes whole microbatches when it trains; evaluation takes any number.
    trainer.fit(module, data(0, TRAINED, BATCH // shards), data(1, UNSEEN, 5))
    path = str(OUT / mesh / "epoch=1.ckpt")
    said[mesh] = {
        "fit": float(trainer.callback_metrics["val"]),
        "same": evaluated(trainer, module, data(1, UNSEEN, 5), None),
        "without a model": evaluated(trainer, None, data(1, UNSEEN, 5), path),
        "fresh": evaluated(trainer_of(options, 2), Lesson(), data(1, UNSEEN, 5), path),
    }
    trainer = trainer_of(options, 4)
    trainer.fit(module, data(0, TRAINED, BATCH // shards), data(1, UNSEEN, 5), ckpt_path=path)
    said[mesh]["further"] = float(trainer.callback_metrics["val"])
    said[mesh]["loop"] = loop(options)

with torch_hal.Runtime(accelerator="cpu", devices=PROCESSES, strategy="ddp" if PROCESSES > 1 else "auto") as last:
    last.launch()
    say(last, said)
