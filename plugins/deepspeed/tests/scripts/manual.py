"""A Module with manual optimization: ``manual.py MODE PROCESSES STRATEGY...``; the strategies, one after the other."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from lessons import data, trainer
from problem import MLP, OUT, WHOLE
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_hal_deepspeed import DeepSpeedStrategy

import torch_hal
from torch_hal.callbacks import ModelCheckpoint
from torch_hal.errors import CoreError

mode, processes, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
said: dict[str, Any] = {}
rank = 0


class ByHand(torch_hal.Module):
    """Two backward passes for each batch, a step every two batches, clipping and a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = MLP()
        self.dropout = torch.nn.Dropout(0.1)
        self.seen: list[float] = []

    def forward(self, batch: Tensor) -> Tensor:
        scores: Tensor = self.dropout(self.model(batch))
        return scores

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        schedule: Any = self.lr_schedulers()
        if batch_idx % 2 == 0:
            optimizer.zero_grad()
        with optimizer.toggle_model():
            for part in (slice(None, None, 2), slice(1, None, 2)):
                loss = cross_entropy(self(batch[0][part]), batch[1][part]) / 4
                self.manual_backward(loss)
                self.seen.append(float(loss.detach()))
        if batch_idx % 2 == 1:
            self.clip_gradients(optimizer, gradient_clip_val=0.5)
            optimizer.step()
            schedule.step()
        self.log("loss", loss, on_step=False, on_epoch=True)

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        self.log("score", cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, eps=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


class Two(ByHand):
    """Two optimizers."""

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.model.first, self.model.last)]


class Halfway(torch_hal.Callback):
    """Saves between a backward pass and its step."""

    def on_train_batch_end(
        self, trainer: torch_hal.Trainer, module: torch_hal.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            trainer.save_checkpoint(OUT / "halfway.ckpt")


def strategy_of(name: str) -> Any:
    stage, _, precision = name.partition(" ")
    parts: dict[str, Any] = {"precision": precision} if precision else {}
    if stage == "ddp":
        return torch_hal.strategies.DDPStrategy(**parts)
    return DeepSpeedStrategy(stage=int(stage), config=WHOLE if stage != "0" else None, **parts)


for name in names:
    options: dict[str, Any] = {"gradient_clip_val": None}
    if mode == "refused":
        try:
            trainer(strategy_of(name), processes, name, **options).fit(Two(), data(16, 0))
        except CoreError as error:
            said["two"] = str(error)
        try:
            trainer(strategy_of(name), processes, name, callbacks=[Halfway()], default_root_dir=OUT, **options).fit(
                ByHand(), data(16, 0)
            )
        except CoreError as error:
            said["halfway"] = str(error)
        continue
    every = ModelCheckpoint(OUT / name / "steps", every_n_train_steps=1, save_top_k=-1)
    fit: torch_hal.Trainer = trainer(
        strategy_of(name), processes, name, callbacks=[every], default_root_dir=OUT / name, **options
    )
    module = ByHand()
    path = str(OUT / name / "steps" / "epoch=1-step=4.ckpt") if mode == "resumed" else None
    fit.fit(module, data(48, 0, shuffle=True), data(10, 1), ckpt_path=path)
    rank = fit.runtime.process_index
    said[name] = {
        "seen": module.seen,
        "steps": fit.global_step,
        **{key: float(value) for key, value in fit.callback_metrics.items()},
    }
(OUT / f"{mode}-{processes}-{rank}.json").write_text(json.dumps(said))
