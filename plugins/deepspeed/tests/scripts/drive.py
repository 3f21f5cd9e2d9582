"""A fit whose parameters and optimizer are on a drive: ``drive.py whole|killed|resumed``, and ``drive.py loop|alone``.

``whole`` has them on the host, and is not interrupted; ``killed`` ends itself in its second epoch; ``resumed`` goes
on from what that left after the first. ``loop`` is your own loop. Each has two processes, and ``alone`` one, which
loads what ``loop`` has saved.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from problem import OUT
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_deepspeed import DeepSpeedStrategy
from torch_hal_deepspeed.library import part

import torch_hal
from torch_hal.callbacks import ModelCheckpoint

WIDTH = 1100  # in 16 bits too, half of each matrix is larger than the megabyte below which nothing goes to a drive
CHECKPOINT = OUT / "checkpoints" / "epoch=0.ckpt"


class Lesson(torch_hal.Module):
    """Five matrices, the first of which is not trained, and a last layer with its own learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
        self.net[0].requires_grad_(False)
        self.last = nn.Linear(WIDTH, 1)
        self.losses: list[float] = []

    def forward(self, batch: Tensor) -> Tensor:
        loss: Tensor = (self.last(self.net(batch)) - 1).square().mean()
        return loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self(batch[0])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = [
            {"params": self.net[1:].parameters()},
            {"params": self.last.parameters(), "lr": 3e-4},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-4)
        return [optimizer], [StepLR(optimizer, 1, 0.5)]


class Keeper(torch_hal.Callback):
    """Leaves what there is at the end of each epoch, and may end its process after the first."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def on_train_batch_start(self, trainer: torch_hal.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        if self.phase == "killed" and trainer.current_epoch == 1 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_epoch_end(self, trainer: torch_hal.Trainer, module: Any) -> None:
        keep(trainer.strategy, module, f"{self.phase}-{trainer.current_epoch}")


def keep(strategy: Any, module: Any, name: str) -> None:
    """In process 0, losses, weights, and what DeepSpeed's own functions say of the optimizer."""
    own = part("utils")
    stepped = {}
    for parameter, value in module.named_parameters():
        if value.requires_grad:
            read = [own.safe_get_full_fp32_param(value)]
            read += [own.safe_get_full_optimizer_state(value, key) for key in ("exp_avg", "exp_avg_sq")]
            stepped[parameter] = [tensor.clone() for tensor in read]
    weights = strategy.whole_module_state(module)
    divided = strategy.engine.optimizer
    kept = {
        "losses": module.losses,
        "weights": weights,
        "stepped": stepped,
        "steps": [float(state["step"]) for state in divided.optimizer.state.values()],
        "rates": [group["lr"] for group in divided.optimizer.param_groups],
        "swapped": len(divided.optimizer_swapper.swap_params_info) if divided.swap_optimizer else 0,
        "parameters on the drive": sum(flat is None for flat in divided.fp16_partitioned_groups_flat),
    }
    if strategy.global_rank == 0:
        torch.save(kept, OUT / f"{name}.pt")


def strategy(device: str, **offload: Any) -> DeepSpeedStrategy:
    zero = {"sub_group_size": 1_000_000, "stage3_param_persistence_threshold": 0, **offload}
    return DeepSpeedStrategy(
        stage=3, offload_optimizer=device, offload_parameters=device, nvme_path=OUT, config={"zero_optimization": zero}
    )


def fit(phase: str) -> None:
    torch.manual_seed(1 if phase == "resumed" else 0)
    items = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
    lesson = Lesson()
    trainer = torch_hal.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy("cpu") if phase == "whole" else strategy("nvme", offload_param={"max_in_cpu": 0}),
        max_epochs=2,
        gradient_clip_val=1.0,
        callbacks=[
            Keeper(phase),
            *([ModelCheckpoint(OUT / "checkpoints", "{epoch}", save_top_k=-1)] if phase == "killed" else []),
        ],
        enable_checkpointing=phase == "killed",
        enable_progress_bar=False,
        logger=False,
    )
    data = DataLoader(TensorDataset(items), batch_size=8)
    trainer.fit(lesson, data, ckpt_path=CHECKPOINT if phase == "resumed" else None)


def loop(phase: str) -> None:
    lesson = Lesson()
    with torch_hal.Runtime(
        accelerator="cpu", devices=1 if phase == "alone" else 2, strategy=strategy("nvme")
    ) as runtime:
        (optimizer,), _ = lesson.configure_optimizers()
        model, optimizer = runtime.prepare(lesson, optimizer)
        parts = {"model": lesson, "optimizer": optimizer}
        if phase == "loop":
            for _ in range(2):
                runtime.backward(model(torch.randn(8, WIDTH)))
                optimizer.step()
                optimizer.zero_grad()
            runtime.save(parts, OUT / "saved")
        else:
            runtime.load(OUT / "saved", parts)
        keep(runtime.strategy, lesson, phase)


if __name__ == "__main__":
    loop(sys.argv[1]) if sys.argv[1] in ("loop", "alone") else fit(sys.argv[1])
