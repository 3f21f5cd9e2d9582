"""A fit of Lightning's own Trainer that saves on its way; with the argument ``here``, core's goes on from each file."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping as LightningsEarlyStopping
from lightning.pytorch.callbacks import ModelCheckpoint
from problem import OUT
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torch_hal
from torch_hal.callbacks import EarlyStopping
from torch_hal.errors import CheckpointError

SIZE, BATCH, EPOCHS = 24, 4, 4
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def made(base: type[Any]) -> type[Any]:
    """The same class on Lightning's base class and on ours."""

    class Net(base):  # type: ignore[misc]
        def __init__(self, width: int = 4, **more: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1))
            self.seen: list[float] = []

        def loss(self, batch: Any) -> Tensor:
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = self.loss(batch)
            self.seen.append(loss.item())
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.loss(batch).detach())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    return Net


def loader(order: list[int]) -> DataLoader[Any]:
    inputs = torch.randn(SIZE, 6, generator=torch.Generator().manual_seed(1))[order]
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=BATCH)


def part(devices: int) -> DataLoader[Any]:
    """This process's batches. Lightning's own sampler would shuffle the items."""
    items = loader(list(range(SIZE)))
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    sampler: DistributedSampler[Any] = DistributedSampler(items.dataset, devices, rank, shuffle=False)
    return DataLoader(items.dataset, BATCH, sampler=sampler)


def order_here(devices: int) -> list[int]:
    """What gives each process the batches that torch's sampler gives it, which takes every n-th item."""
    step = devices * BATCH
    return [j + r + i * devices for j in range(0, SIZE, step) for r in range(devices) for i in range(BATCH)]


def fit_lightnings(devices: int) -> None:
    torch.manual_seed(0)
    module = made(pl.LightningModule)(width=8)
    callbacks = [
        ModelCheckpoint(OUT / "saved", "end-{epoch}", save_top_k=-1, monitor="val"),
        ModelCheckpoint(OUT / "saved", "val-{epoch}", save_top_k=-1, save_on_train_epoch_end=False),
        ModelCheckpoint(OUT / "saved", "{step}", save_top_k=-1, every_n_train_steps=SIZE // BATCH // devices // 2 or 1),
        LightningsEarlyStopping("val", patience=50),
    ]
    strategy = "ddp" if devices > 1 else "auto"
    settings: dict[str, Any] = {"accelerator": "cpu", "devices": devices, "max_epochs": EPOCHS, **QUIET}
    trainer = pl.Trainer(callbacks=callbacks, strategy=strategy, use_distributed_sampler=False, **settings)
    trainer.fit(module, part(devices), part(devices))
    trainer.save_checkpoint(OUT / "saved" / "after.ckpt")
    (OUT / f"seen-{trainer.global_rank}.json").write_text(json.dumps(module.seen))
    weights = {name: value.tolist() for name, value in module.state_dict().items()}
    (OUT / "said.json").write_text(json.dumps({"weights": weights}))


def go_on_here(devices: int, names: list[str]) -> None:
    seen: dict[str, Any] = {}
    for name in names:
        module = made(torch_hal.Module)(width=8)
        settings: dict[str, Any] = {"accelerator": "cpu", "devices": devices, "max_epochs": EPOCHS, **QUIET}
        stopping = EarlyStopping("val", patience=50)
        trainer = torch_hal.Trainer(callbacks=stopping, enable_checkpointing=False, **settings)
        try:
            trainer.fit(
                module, loader(order_here(devices)), loader(order_here(devices)), ckpt_path=OUT / "saved" / name
            )
        except CheckpointError as error:
            seen[name] = str(error)
        else:
            seen[name] = module.seen
    (OUT / f"here-{trainer.global_rank}.json").write_text(json.dumps(seen))
    loaded = made(torch_hal.Module).load_from_checkpoint(OUT / "saved" / "after.ckpt")
    weights = {name: value.tolist() for name, value in loaded.state_dict().items()}
    said = {
        "weights": weights,
        "hparams": dict(loaded.hparams),
        "read by Lightning": devices > 1 or read_by_lightning(),
    }
    (OUT / "said.json").write_text(json.dumps(said))


def read_by_lightning() -> bool:
    """Whether Lightning's own ``load_from_checkpoint`` finds weights and hyperparameters in a file of ours."""
    module = made(torch_hal.Module)(width=5)
    trainer = torch_hal.Trainer(accelerator="cpu", devices=1, max_epochs=1, enable_checkpointing=False, **QUIET)
    trainer.fit(module, loader(list(range(SIZE))))
    trainer.save_checkpoint(OUT / "ours.ckpt")
    theirs = made(pl.LightningModule).load_from_checkpoint(OUT / "ours.ckpt", weights_only=True)
    own = module.state_dict()
    return dict(theirs.hparams) == {"width": 5} and all(
        torch.equal(tensor, own[name]) for name, tensor in theirs.state_dict().items()
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    devices = int(sys.argv[2])
    if sys.argv[1] == "here":
        found = sorted(path.name for path in Path(OUT, "saved").iterdir()) if devices == 1 else ["end-epoch=1.ckpt"]
        go_on_here(devices, found)
    else:
        fit_lightnings(devices)
