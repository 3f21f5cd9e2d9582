"""Training with ddp and with colossalai; process 0 writes losses and weights."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module, Runtime, Trainer
from torch_hal.callbacks import ModelCheckpoint

PROCESSES = int(sys.argv[1])
OUT = Path(os.environ["OUT"])


def network() -> nn.Module:
    torch.manual_seed(0)
    norm, dropout = nn.BatchNorm1d(16), nn.Dropout(0.1)
    return nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), dropout, nn.Linear(16, 4))


def loader() -> DataLoader[Any]:
    data = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(data, data[:, :4].argmax(1)), batch_size=4)


def own_loop(strategy: str, precision: str) -> dict[str, Any]:
    """Six steps of two batches each, clipped."""
    net = network()
    with Runtime(
        accelerator="cpu", devices=PROCESSES, strategy=strategy, precision=precision, gradient_accumulation_steps=2
    ) as runtime:
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        model, optimizer, batches = runtime.prepare(net, optimizer, loader())
        torch.manual_seed(runtime.process_index)
        losses = []
        for inputs, labels in batches:
            with runtime.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                runtime.backward(loss)
                if runtime.sync_gradients:
                    runtime.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(runtime.reduce(loss.detach(), "mean").item())
        return {"losses": losses, "weights": values(net)}


def values(net: nn.Module) -> list[float]:
    """All that is in checkpoints."""
    return [float(value) for tensor in net.state_dict().values() for value in tensor.flatten()]


class Lesson(Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)


def fit(**options: Any) -> list[float]:
    """The weights after a fit."""
    lesson, path = Lesson(), options.pop("ckpt_path", None)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(accelerator="cpu", devices=PROCESSES, strategy="colossalai", **quiet, **options)
    trainer.fit(lesson, loader(), ckpt_path=path)
    return values(lesson.net)


def own_step(step: int, folder: str) -> list[ModelCheckpoint]:
    return [ModelCheckpoint(dirpath=OUT / folder, every_n_train_steps=step, save_top_k=-1, filename="{step}")]


said: dict[str, Any] = {}
for precision in ("32-true", "bf16-mixed"):
    for strategy in ("ddp", "colossalai"):
        said[f"{strategy} {precision}"] = own_loop(strategy, precision)
said["whole"] = fit(max_epochs=1, enable_checkpointing=False)
fit(max_steps=3, callbacks=own_step(3, "saved"))
(saved,) = (OUT / "saved").iterdir()
said["resumed"] = fit(max_epochs=1, enable_checkpointing=False, ckpt_path=saved)
if int(os.environ.get("RANK", "0")) == 0:
    (OUT / "said.json").write_text(json.dumps(said))
