"""Values that the processes of a run log with ``sync_dist=True``: alike, in other orders, and under other names."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError

DEVICES = int(sys.argv[1])
REDUCTIONS = ("mean", "sum", "min", "max")
OUT = Path(os.environ["OUT"])


class Logs(Module):
    """Logs in each training step as the function says, which gets the module and the batch's number."""

    def __init__(self, log: Callable[[Any, int], None]) -> None:
        super().__init__()
        self.layer, self.log_step = nn.Linear(4, 1), log

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.log_step(self, batch_idx)
        loss: Tensor = self.layer(batch).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def one(module: Any, batch_idx: int) -> None:
    module.log("x", batch_idx + module.global_rank, sync_dist=True)


def in_other_orders(module: Any, batch_idx: int) -> None:
    """Each process has its own order, its own call and its own types."""
    rank = module.global_rank
    values = {f"v{number}": number * (rank + 1) + batch_idx for number in range(20)}
    for name in list(values)[rank:] + list(values)[:rank]:
        options = {"sync_dist": True, "reduce_fx": REDUCTIONS[int(name[1:]) % 4]}
        if rank == 1:
            module.log_dict({name: torch.tensor(float(values[name]), dtype=torch.float64)}, **options)
        else:
            module.log(name, values[name], **options)
    module.log("both", float(rank), on_step=True, on_epoch=True, sync_dist=True)


def other_names(module: Any, batch_idx: int) -> None:
    module.log("a" if module.global_rank == 0 else "b", 0.5, sync_dist=True)


def in_zero_only(module: Any, batch_idx: int) -> None:
    if module.trainer.is_global_zero:
        module.log("a", 0.5, sync_dist=True)


def in_one_only(module: Any, batch_idx: int) -> None:
    if module.global_rank == 1:
        module.log("a", 0.5, sync_dist=True)


def later_in_zero_only(module: Any, batch_idx: int) -> None:
    module.log("all", 1.0, sync_dist=True)
    if batch_idx >= 5 and module.trainer.is_global_zero:
        module.log("a", 0.5, sync_dist=True)


def other_reductions(module: Any, batch_idx: int) -> None:
    module.log("a", 0.5, sync_dist=True, reduce_fx="sum" if module.global_rank else "mean")


def other_batches(module: Any, batch_idx: int) -> None:
    if batch_idx == 2 + module.global_rank:
        module.log("a", 0.5, sync_dist=True)


def epoch_in_zero_only(module: Any, batch_idx: int) -> None:
    if module.trainer.is_global_zero:
        module.log("a", 0.5, on_step=False, on_epoch=True, sync_dist=True)


def epoch_reductions(module: Any, batch_idx: int) -> None:
    module.log("a", 0.5, on_step=False, on_epoch=True, reduce_fx="sum" if module.global_rank else "mean")


WRONG = (
    *(other_names, in_zero_only, in_one_only, later_in_zero_only, other_reductions, other_batches),
    *(epoch_in_zero_only, epoch_reductions),
)


class Reads(Callback):
    """Keeps what there is to read after each batch, and counts the collectives."""

    def __init__(self) -> None:
        self.read: list[float | None] = []
        self.collectives: list[int] = []
        self._count = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        before = trainer.strategy.all_gather

        def counted(tensor: Tensor) -> Tensor:
            self._count += 1
            gathered: Tensor = before(tensor)
            return gathered

        trainer.strategy.all_gather = counted

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        found = trainer.callback_metrics.get("x")
        self.read.append(None if found is None else float(found))
        self.collectives.append(self._count)


class Sent:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.calls.append([step, metrics])


def trainer(**arguments: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    arguments = {"enable_checkpointing": False, "max_epochs": 1, "log_every_n_steps": 4, **quiet, **arguments}
    return Trainer(accelerator="cpu", devices=DEVICES, strategy="ddp", default_root_dir=OUT, **arguments)


def loader() -> Any:
    items: Any = torch.ones(16 * DEVICES, 4)
    return DataLoader(items, batch_size=2)


def main() -> None:
    said: dict[str, Any] = {}
    reads, sent = Reads(), Sent()
    running = trainer(callbacks=[reads], logger=sent)
    running.fit(
        Logs(lambda module, batch_idx: module.log("x", batch_idx + module.global_rank, sync_dist=True)), loader()
    )
    said["read"], said["collectives"], said["sent"] = reads.read, reads.collectives, sent.calls

    running = trainer()
    running.fit(Logs(in_other_orders), loader())
    said["orders"] = {name: float(value) for name, value in running.callback_metrics.items()}

    # Rank 0's own value is the least at step 3, and the mean of all at step 6.
    def scores(module: Any, batch_idx: int) -> None:
        module.log("score", float(batch_idx if module.global_rank == 0 else -3 * batch_idx), sync_dist=True)

    best = ModelCheckpoint(OUT / "best", monitor="score", every_n_train_steps=3, save_top_k=1)
    trainer(callbacks=[best], enable_checkpointing=True).fit(Logs(scores), loader())
    said["score"] = float(best.best_model_score)  # type: ignore[arg-type]

    for wrong in WRONG:
        running = trainer()
        try:
            running.fit(Logs(wrong), loader())
        except ConfigurationError as error:
            said[wrong.__name__] = [running.global_step, str(error)]
    (OUT / f"{running.global_rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
