"""One process of a run that `compare.py` started, or the one that starts the others.

    python compare_worker.py ROW first|resumed FOLDER TASK=STEPS...

``first`` trains in its own loop, then with the Trainer for two epochs; ``resumed`` goes on from the checkpoint
that the Trainer wrote in FOLDER after the first of them. Each process leaves there what it came to.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from compare_roster import ROSTER, Entry
from tasks import TASKS, Lesson, Task
from torch import Tensor
from torch.utils.data import DataLoader, Subset

import core
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError

ITEMS = 256
"""Of a task, in an epoch of the Trainer."""


def main() -> None:
    name, phase, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    entry = next(one for one in ROSTER if one.name == name)
    for arguments in sys.argv[4:]:
        task_name, _, steps = arguments.partition("=")
        task = entry.task(replace(TASKS[task_name], steps=int(steps)))
        try:
            if entry.strategy == "":
                keep(folder / f"{task.name}-loop-0.pt", plain_loop(task), {})
            else:
                run(entry, task, phase, folder)
        except ConfigurationError as error:
            (folder / "refused.json").write_text(json.dumps(str(error)))
            raise


def run(entry: Entry, task: Task, phase: str, folder: Path) -> None:
    arguments: dict[str, Any] = {"accelerator": "cpu", "devices": 2 // entry.machines, "num_nodes": entry.machines}
    if phase == "first":
        with core.Runtime(strategy=entry.make(), **arguments) as runtime:
            runtime.launch(own_loop, task, folder)
    core.seed_everything(3)
    trainer = core.Trainer(
        strategy=entry.make(),
        max_epochs=2,
        enable_progress_bar=False,
        callbacks=[
            ModelCheckpoint(folder / task.name / phase, "{epoch}", save_top_k=-1),
            Keeper(folder / f"{task.name}-{phase}"),
        ],
        **arguments,
    )
    lesson = Lesson(task)
    data = DataLoader(Subset(task.data(), range(ITEMS)), batch_size=task.batch_size // 2, shuffle=True)
    if phase == "first":
        trainer.fit(lesson, data)
        return
    trainer.fit(lesson, data, ckpt_path=folder / task.name / "first" / "epoch=0.ckpt")


def plain_loop(task: Task) -> list[Tensor]:
    """The losses of a loop as torch's tutorial has it, on one process."""
    model = task.build()
    optimizer = task.optimizer(model.parameters())
    losses = []
    for step in range(task.steps):
        loss = task.loss(model, *task.batch(step))
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def own_loop(runtime: core.Runtime, task: Task, folder: Path) -> None:
    """The same loop on this process's share of each batch."""
    strategy = runtime.strategy
    own = task.build()
    model, optimizer = runtime.prepare(own, task.optimizer(own.parameters()))
    losses = []
    for step in range(task.steps):
        inputs, targets = task.share(step, strategy.data_shard, strategy.data_shards)
        loss = task.loss(model, inputs.to(runtime.device), targets.to(runtime.device))
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    state = strategy.whole_module_state(own)
    keep(folder / f"{task.name}-loop-{runtime.process_index}.pt", losses, state)


class Keeper(core.Callback):
    """Leaves what a fit came to, while its processes are still together.

    Args:
        path: Where; each process adds its number.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_fit_end(self, trainer: core.Trainer, module: Any) -> None:
        state = trainer.strategy.whole_module_state(module)
        keep(Path(f"{self.path}-{trainer.runtime.process_index}.pt"), module.losses, state)


def keep(path: Path, losses: list[Tensor], state: dict[str, Any]) -> None:
    """Leave losses, and parameters where this process has them whole."""
    parameters = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
    torch.save({"losses": torch.stack(losses).double().cpu(), "parameters": parameters}, path)


if __name__ == "__main__":
    main()
