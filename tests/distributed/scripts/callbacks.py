"""Three processes with other metrics, clocks and numbers of items: their callbacks decide alike."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer, seed_everything
from core.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint, Timer

OUT = Path(os.environ["OUT"])


class Regression(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rank = self.trainer.strategy.global_rank
        time.sleep(0.01 * rank)
        self.log("own", float((rank + 1) * (batch_idx % 3)))
        loss: Tensor = self.model(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val", self.model(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Normed(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))  # type: ignore[assignment]


class Save(Callback):
    """Writes a checkpoint before the average has taken the weights of the step."""

    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 3 and not (OUT / "three.ckpt").exists():
            trainer.save_checkpoint(OUT / "three.ckpt")


def averages(strategy: str) -> None:
    """The average that a fit without validation leaves, and that of the same fit, resumed."""
    data = DataLoader(TensorDataset(torch.randn(54, 4)), batch_size=4)
    for name, path in (("whole", None), ("resumed", OUT / "three.ckpt")):
        seed_everything(1)
        module = Normed()
        trainer = Trainer(
            accelerator="cpu", devices=3, strategy=strategy, max_epochs=2, enable_progress_bar=False, logger=False,
            callbacks=[Save(), EMAWeightAveraging(decay=0.5)], enable_checkpointing=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, data, ckpt_path=path)
        torch.save(module.state_dict(), OUT / f"{name}-{trainer.runtime.process_index}.pt")


def main() -> None:
    strategy = sys.argv[1]
    seed_everything(0)
    best = ModelCheckpoint(OUT / "best", monitor="own", mode="max", every_n_train_steps=2, save_top_k=2, save_last=True)
    timed = ModelCheckpoint(OUT / "timed", train_time_interval=timedelta(seconds=0.05), save_top_k=-1)
    default = ModelCheckpoint(monitor="val")
    stopping, timer = EarlyStopping("val", patience=50), Timer(timedelta(seconds=60))
    trainer = Trainer(
        accelerator="cpu",
        devices=3,
        strategy=strategy,
        max_epochs=3,
        callbacks=[stopping, timer, EMAWeightAveraging(decay=0.5), best, timed, default],
        enable_progress_bar=False,
        default_root_dir=OUT,
        logger=False,
    )
    data = DataLoader(TensorDataset(torch.randn(50, 4)), batch_size=3)
    module = Regression()
    trainer.fit(module, data, data)
    trainer.save_checkpoint(OUT / "after.ckpt")
    rank = trainer.runtime.process_index
    own = [best.state_dict(), timed.state_dict(), default.state_dict(), stopping.state_dict(), trainer.global_step]
    torch.save(own, OUT / f"state-{rank}.pt")
    until = timedelta(hours=0 if rank else 9)  # until a deadline, which is over by the clocks of the others
    resumed = Trainer(
        accelerator="cpu", devices=3, strategy=strategy, max_epochs=4, enable_progress_bar=False,
        enable_checkpointing=False, logger=False, callbacks=[Timer(until)],
    )  # fmt: skip
    resumed.fit(Regression(), data, data, ckpt_path=OUT / "after.ckpt")
    assert resumed.current_epoch == 4
    averages(strategy)


if __name__ == "__main__":
    main()
