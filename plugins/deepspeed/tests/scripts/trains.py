"""Fits of the Trainer, a stage after the other: ``trains.py whole|resumed|loaded|evaluated PROCESSES STAGE...``."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from lessons import Lesson, data, trainer
from problem import OUT, WHOLE
from torch_hal_deepspeed import DeepSpeedStrategy

import torch_hal

phase, processes, stages = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
said: dict[str, Any] = {}
rank = 0


def strategy_of(stage: str) -> Any:
    if stage == "ddp":
        return "ddp"
    if stage == "offload":
        return "deepspeed_stage_3_offload"
    return DeepSpeedStrategy(stage=int(stage), config=WHOLE if stage != "0" else None)


def evaluated(trainer: torch_hal.Trainer, module: Lesson) -> list[float]:
    """What validate and predict give."""
    loss = trainer.validate(module, data(10, 1))[0]["loss"]
    return [loss, *torch.cat(trainer.predict(module, data(10, 1))).flatten().tolist()]


for stage in stages:
    fit: torch_hal.Trainer = trainer(strategy_of(stage), processes, stage, accumulate_grad_batches=2)
    module = Lesson()
    if phase == "loaded":
        (found,) = fit.validate(module, data(10, 1), ckpt_path=str(OUT / stage / "checkpoints" / "epoch=0-step=2.ckpt"))
        said[stage] = {"loss": found["loss"], "items": found["items"]}
    elif phase == "evaluated":
        fresh, module = evaluated(fit, module), Lesson()
        fit.fit(module, data(26, 0))
        said[stage] = {"fresh": fresh, "fitted": evaluated(fit, module)}
    else:
        first = str(OUT / stage / "checkpoints" / "epoch=0-step=2.ckpt") if phase == "resumed" else None
        fit.fit(module, data(26, 0, shuffle=True), data(10, 1), ckpt_path=first)
        said[stage] = {
            "seen": module.seen,
            "loss": float(fit.callback_metrics["loss"]),
            "items": float(fit.callback_metrics["items"]),
            "steps": fit.global_step,
        }
    rank = fit.runtime.process_index
(OUT / f"{phase}-{processes}-{rank}.json").write_text(json.dumps(said))
