"""The Trainer, and checkpoints: ``first`` trains and saves, ``later`` goes on with it and reads what was saved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from problem import OUT, Lesson, Transformer, data, evaluate, make, numbers, say, train, trainer, whole_state
from torch_hal_fsdp import FSDPStrategy

import torch_hal
from torch_hal.checkpoints import ShardedCheckpointIO
from torch_hal.convert import convert
from torch_hal.strategies import DDPStrategy, SingleDeviceStrategy

PROCESSES, MODE, SAVED = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3] if len(sys.argv) > 3 else ".")
said: dict[str, Any] = {}


class Kept(torch_hal.Callback):
    """Gathers the module at the end of a fit, while the processes are still together; saves within an accumulation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(
        self, trainer: torch_hal.Trainer, module: torch_hal.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.accumulate_grad_batches > 1 and (trainer.current_epoch, batch_idx) == (1, 0):
            trainer.save_checkpoint(self.folder / "within")

    def on_fit_end(self, trainer: torch_hal.Trainer, module: torch_hal.Module) -> None:
        self.state = whole_state(module)


def fit(name: str, strategy: Any, ckpt_path: str | None = None, **options: Any) -> Lesson:
    """Two epochs with validation; five batches to validate make an odd number for two processes."""
    kept = Kept(OUT / name)
    teacher = trainer(strategy, PROCESSES, name, callbacks=[kept], **options)
    lesson = Lesson()
    teacher.fit(lesson, data(24, 1, shuffle=True), data(18, 2), ckpt_path=ckpt_path)
    metrics = {key: float(value) for key, value in teacher.callback_metrics.items()}
    said[name] = {
        "losses": list(lesson.seen),
        "metrics": metrics,
        "parameters": numbers(list(kept.state.values())),
        "step": teacher.global_step,
    }
    return lesson


def resume_within(name: str, strategy: Any, **options: Any) -> None:
    fit(f"{name} within", strategy, str(OUT / name / "within"), accumulate_grad_batches=2, **options)


def look(name: str, strategy: Any, lesson: Lesson, **options: Any) -> None:
    """Validation and prediction."""
    teacher = trainer(strategy, PROCESSES, "looking")
    (metrics,) = teacher.validate(lesson, data(18, 2), **options)
    said[name] = {"metrics": metrics, "predicted": numbers(teacher.predict(lesson, data(10, 4)))}


def first() -> None:
    lesson = fit("ddp", DDPStrategy())
    look("ddp afterwards", DDPStrategy(), lesson)
    lesson = fit("fsdp", "fsdp")
    look("fsdp afterwards", "fsdp", lesson)
    trainer("fsdp", PROCESSES, "again", epochs=1).fit(lesson, data(24, 1))
    lesson = fit("full", FSDPStrategy(state_dict_type="full", cpu_offload=True), accumulate_grad_batches=2)
    fit("ddp accumulated", DDPStrategy(), accumulate_grad_batches=2)
    fit("each", FSDPStrategy(reduce_each_batch=True), accumulate_grad_batches=2)
    fit("mixed", FSDPStrategy(), accumulate_grad_batches=2, precision="bf16-mixed")
    resume_within("full", FSDPStrategy(state_dict_type="full", cpu_offload=True))
    resume_within("each", FSDPStrategy(reduce_each_batch=True))
    resume_within("mixed", FSDPStrategy(), precision="bf16-mixed")
    look(
        "tensor", FSDPStrategy(tensor_parallel_size=2), Lesson(), ckpt_path=OUT / "fsdp/checkpoints/epoch=1-step=6.ckpt"
    )
    with torch_hal.Runtime(accelerator="cpu", strategy="ddp", devices=PROCESSES) as runtime:
        made = make(runtime, Transformer)
        train(runtime, made, steps=3)
        runtime.save({"model": made[1], "optimizer": made[2]}, OUT / "loop of ddp")
    with torch_hal.Runtime(accelerator="cpu", strategy="fsdp", devices=PROCESSES) as runtime:
        made = make(runtime, Transformer)
        train(runtime, made, steps=3)
        state = {"model": made[1], "optimizer": made[2], "note": 7}
        runtime.save(state, OUT / "loop")
        before = evaluate(runtime, made)
        expected = train(runtime, made, steps=3, first=3)
        said["loop"] = {"evaluated": before, "continued": expected["losses"]}
        rest = runtime.load(OUT / "loop", {"model": made[1], "optimizer": made[2]})
        said["reloaded"] = {
            "evaluated": evaluate(runtime, made),
            "continued": train(runtime, made, steps=3, first=3)["losses"],
            "rest": rest,
        }


def resume() -> None:
    fit("resumed", "fsdp", ckpt_path=str(SAVED / "fsdp/checkpoints/epoch=0-step=3.ckpt"))
    fit("resumed ddp", DDPStrategy(), ckpt_path=str(SAVED / "ddp/checkpoints/epoch=0-step=3.ckpt"))


def later() -> None:
    resume()
    path = SAVED / "fsdp/checkpoints/epoch=1-step=6.ckpt"
    look("fsdp", "fsdp", Lesson(), ckpt_path=path)
    with torch.device("meta"):
        lesson = Lesson()
    look("made on meta", "fsdp", lesson, ckpt_path=path)
    look("of ddp", "fsdp", Lesson(), ckpt_path=SAVED / "ddp/checkpoints/epoch=1-step=6.ckpt")
    if PROCESSES == 4:
        look("hybrid", FSDPStrategy(replicas=2), Lesson(), ckpt_path=path)
        look("tensor", FSDPStrategy(tensor_parallel_size=2), Lesson(), ckpt_path=path)
    if PROCESSES == 1:
        look("full", "single_device", Lesson(), ckpt_path=SAVED / "full/checkpoints/epoch=1-step=4.ckpt")
        look("unsharded", SingleDeviceStrategy(checkpoint_io=ShardedCheckpointIO()), Lesson(), ckpt_path=path)
        lesson = Lesson()
        lesson.load_state_dict(torch.load(convert(path, OUT / "whole.pt"))["state_dict"])
        look("consolidated", "single_device", lesson)
    go_on("loop", FSDPStrategy(), "loop")
    go_on("loop ddp", DDPStrategy(checkpoint_io=ShardedCheckpointIO()), "loop")
    go_on("loop of ddp", FSDPStrategy(), "loop of ddp")
    if PROCESSES > 1:
        go_on("loop tensor", FSDPStrategy(tensor_parallel_size=2), "loop")


def go_on(name: str, strategy: Any, saved: str) -> None:
    """Train on from what a loop has saved."""
    with torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=PROCESSES) as runtime:
        made = make(runtime, Transformer)
        runtime.load(SAVED / saved, {"model": made[1], "optimizer": made[2]})
        evaluated = evaluate(runtime, made)
        said[name] = {"evaluated": evaluated, "continued": train(runtime, made, steps=3, first=3)["losses"]}


{"first": first, "later": later}[MODE]()
with torch_hal.Runtime(accelerator="cpu", strategy=DDPStrategy(), devices=PROCESSES) as last:
    last.launch()
    say(last, said)
