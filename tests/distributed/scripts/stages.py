"""fit, validate, test and predict one after another on two processes, against the same on one."""

import copy
import json
import os
import sys

import torch
from problem import BATCH, model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer, seed_everything


class Regression(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.log("loss", loss.detach(), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("first", batch[0][:, 0].mean())
        if batch_idx == 0:
            self.log("largest", batch[0].max(), reduce_fx="max")

    test_step = validation_step

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return batch[0][:, 0]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Drawn(Regression):
    """Its validations take the first batch of a shuffled loader."""

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("drawn", batch[0][0, 0])


class Notes(Callback):
    def __init__(self) -> None:
        self.drawn: list[float] = []

    def on_validation_end(self, trainer: Trainer, module: Module) -> None:
        self.drawn.append(float(trainer.callback_metrics["drawn"]))

    def state_dict(self) -> dict[str, list[float]]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state_dict: dict[str, list[float]]) -> None:
        self.drawn = state_dict["drawn"]


class LastProcessStops(Callback):
    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        trainer.should_stop = trainer.runtime.process_index == 1


def main() -> None:
    strategy, devices = sys.argv[1:]
    seed_everything(0)
    # 53 items in batches of 8: seven batches, the last smaller, shared out as four and three.
    inputs = torch.arange(53 * 12, dtype=torch.float32).reshape(53, 12)
    loader = DataLoader(TensorDataset(inputs / 1000, inputs[:, :1] / 1000), batch_size=8)
    module = Regression()
    # Made before the first run starts processes, to run after it.
    second = Trainer(accelerator="cpu", strategy=strategy, devices=devices, precision="bf16-mixed", max_epochs=1)
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=devices,
        max_epochs=9,
        callbacks=LastProcessStops(),
        enable_progress_bar=False,
        default_root_dir=os.environ["OUT"],
    )
    trainer.fit(module, DataLoader(loader.dataset, batch_size=BATCH, shuffle=True), loader)
    results = {
        "fit": sorted(trainer.callback_metrics),
        "epochs": trainer.current_epoch,
        "validate": trainer.validate(module, loader)[0],
        "test": trainer.test(module, loader)[0],
        "predict": torch.cat(trainer.predict(module, loader)).tolist(),
    }
    results["second"] = second.validate(module, loader)[0]
    results["copied"] = copy.deepcopy(trainer).validate(module, loader)[0]
    notes = Notes()
    second.callbacks.append(notes)
    second.val_check_interval, second.limit_val_batches, second.num_sanity_val_steps = 1, 1, 0
    second.fit(Drawn(), loader, DataLoader(loader.dataset, batch_size=8, shuffle=True))
    results["drawn"] = notes.drawn
    with open(os.path.join(os.environ["OUT"], f"results{trainer.runtime.process_index}.json"), "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
