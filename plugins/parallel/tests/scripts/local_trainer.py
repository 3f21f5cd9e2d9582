"""The Trainer with DiLoCo: fitted, saved within a round, and resumed; and the same by hand in one process.

Arguments: the number of processes, and precisions.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import LENGTH, OUT, VOCABULARY, Transformer, loss_of, say
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_parallel import DiLoCoStrategy

import torch_hal
from torch_hal.callbacks import ModelCheckpoint

PROCESSES = int(sys.argv[1])
EVERY, SHARE, STEPS, EPOCHS, SAVED = 4, 8, 5, 2, 6
LR, MOMENTUM = 0.7, 0.9


def texts(seed: int, items: int) -> Tensor:
    return torch.randint(VOCABULARY, (items, LENGTH + 1), generator=torch.Generator().manual_seed(seed))


TRAINED, UNSEEN = texts(0, SHARE * STEPS * PROCESSES), texts(1, SHARE * 2 * PROCESSES + 1)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def loss(model: nn.Module, text: Tensor) -> Tensor:
    value: Tensor = loss_of(model(text[:, :-1]), text[:, 1:])
    return value


def step_loss(model: nn.Module, text: Tensor, rank: int, step: int) -> Tensor:
    """Infinite in the last process at its fourth step, which only loss scaling can skip."""
    is_infinite = "16-mixed" in sys.argv and (rank, step) == (PROCESSES - 1, 3)
    return loss(model, text) * (float("inf") if is_infinite else 1)


class Lesson(torch_hal.Module):
    """The transformer as a language model; weights after each epoch, and what was logged."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Transformer()
        self.validated: list[float] = []

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> Tensor:
        return step_loss(self.model, batch[0], self.global_rank, self.global_step)

    def validation_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        self.log("val", loss(self.model, batch[0]))

    def on_validation_end(self) -> None:
        self.validated.append(float(self.trainer.callback_metrics["val"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def fit(precision: str, resume: bool) -> dict[str, Any]:
    saving = ModelCheckpoint(OUT / precision, filename="{step}", every_n_train_steps=SAVED, save_top_k=-1)
    trainer = torch_hal.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy=DiLoCoStrategy(sync_every=EVERY, outer_lr=LR, outer_momentum=MOMENTUM),
        precision=precision,
        max_epochs=EPOCHS,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        callbacks=[saving],
    )
    module = Lesson()
    trainer.fit(
        module,
        DataLoader(TensorDataset(TRAINED), batch_size=SHARE),
        DataLoader(TensorDataset(UNSEEN), batch_size=SHARE),
        ckpt_path=str(OUT / precision / f"step={SAVED}.ckpt") if resume else None,
    )
    torch.save(flat(module), OUT / f"{precision} {trainer.global_rank} {resume}.pt")
    return {"validated": module.validated, "steps": trainer.global_step}


def by_hand(precision: str) -> tuple[list[Tensor], list[float]]:
    """The weights of each process after all steps, and the loss of the unseen texts after each epoch."""
    workers = [Lesson().to(torch.float64 if precision == "64-true" else torch.float32) for _ in range(PROCESSES)]
    settings = [worker.configure_optimizers() for worker in workers]
    half = torch.float16 if precision == "16-mixed" else torch.bfloat16
    low = torch.autocast("cpu", half, enabled=precision.endswith("-mixed"))
    scalers = [torch.amp.GradScaler("cpu", enabled=precision == "16-mixed") for _ in workers]
    common = flat(workers[0])
    velocity = torch.zeros_like(common)
    validated = []
    for step in range(STEPS * EPOCHS):
        for rank, (worker, ([optimizer], [scheduler])) in enumerate(zip(workers, settings, strict=True)):
            own = torch.split(TRAINED, SHARE)[step % STEPS * PROCESSES + rank]
            optimizer.zero_grad()
            with low:
                value = step_loss(worker.model, own, rank, step)
            torch.autograd.backward(scalers[rank].scale(value))
            scalers[rank].step(optimizer)
            scalers[rank].update()
            scheduler["scheduler"].step()
        if (step + 1) % EVERY == 0:
            change = torch.stack([common - flat(worker) for worker in workers]).mean(0)
            velocity = MOMENTUM * velocity + change
            common = common - LR * (change + MOMENTUM * velocity)
            for worker in workers:
                with torch.no_grad():
                    nn.utils.vector_to_parameters(common.clone(), worker.parameters())
        if (step + 1) % STEPS == 0:
            with torch.no_grad(), low:
                parts = [
                    len(part) * loss(workers[number % PROCESSES].model, part)
                    for number, part in enumerate(torch.split(UNSEEN, SHARE))
                ]
            validated.append(float(sum(parts)) / len(UNSEEN))
    return [flat(worker) for worker in workers], validated


said: dict[str, Any] = {}
runs = {(precision, resume): fit(precision, resume) for precision in sys.argv[2:] for resume in (False, True)}
with torch_hal.Runtime(accelerator="cpu", devices=PROCESSES, strategy="ddp") as runtime:
    runtime.launch()
    runtime.wait_for_everyone()
    if runtime.is_main_process:
        for precision in sys.argv[2:]:
            whole, resumed = (
                [torch.load(OUT / f"{precision} {rank} {resume}.pt") for rank in range(PROCESSES)]
                for resume in (False, True)
            )
            expected, validated = by_hand(precision)
            first = runs[precision, False]
            said[precision] = {
                "error": max(float((a - b).abs().max()) for a, b in zip(whole, expected, strict=True)),
                "apart": max(float((one - whole[0]).abs().max()) for one in whole),
                "resumed": all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True)),
                "steps": first["steps"],
                "validated": first["validated"],
                "expected": validated,
                "validated again": runs[precision, True]["validated"],
            }
        say(runtime, said)
