"""What the scripts train, and how they tell of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module, Runtime, Trainer

ITEMS = 96
BATCH = 8
RATE = 0.1


def data() -> TensorDataset:
    """Items in a fixed order."""
    inputs = torch.randn(ITEMS, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loader(batch_size: int = BATCH, shuffle: bool = False) -> DataLoader[Any]:
    """The items in batches."""
    return DataLoader(data(), batch_size=batch_size, shuffle=shuffle)


def net(seed: int = 0) -> nn.Sequential:
    """A small net."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """What is made small."""
    return nn.functional.cross_entropy(output, targets)


def flat(module: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().reshape(-1).double() for parameter in module.parameters()])


def custom_loop(
    runtime: Runtime,
    *,
    epochs: int = 2,
    batch_size: int = BATCH,
    clip: float | None = None,
    accumulate: int = 1,
    no_sync: bool = False,
    optimizer: Any = torch.optim.AdamW,
    rate: float = RATE,
    seed: int | None = 0,
    schedule: Any = None,
) -> dict[str, Any]:
    """Train in your own loop; losses averaged over processes, parameters, and the state of the optimizer."""
    model = net(runtime.process_index if seed is None else seed)  # the others begin as rank 0 does
    made = optimizer(model.parameters(), lr=rate)
    model, made, batches = runtime.prepare(model, made, loader(batch_size))
    made = runtime.prepare(made)  # what is prepared stays as it is
    schedules = [] if schedule is None else [schedule(made)]
    losses = []
    for _ in range(epochs):
        for index, (inputs, targets) in enumerate(batches):
            is_step_end = (index + 1) % accumulate == 0 or index + 1 == len(batches)
            loss = loss_of(model(inputs), targets)
            if no_sync and not is_step_end:
                with runtime.no_sync(model):
                    runtime.backward(loss / accumulate)
            else:
                runtime.backward(loss / accumulate)
            losses.append(runtime.reduce(loss.detach(), "mean"))
            if is_step_end:
                if clip is not None:
                    runtime.clip_grad_norm_(model.parameters(), clip)
                made.step()
                made.zero_grad()
                for step in schedules:
                    step.step()
    return {
        "losses": torch.stack(losses).double(),
        "parameters": flat(runtime.unwrap_model(model)),
        "all parameters": runtime.gather(flat(runtime.unwrap_model(model)).unsqueeze(0)),
        "rate": made.param_groups[0]["lr"],
    }


class Classifier(Module):
    """The same in the Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        inputs, targets = batch
        loss = loss_of(self.net(inputs), targets)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """What evaluation logs."""
        self.log("val_loss", loss_of(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        """A scheduler too, made of the user's own optimizer."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)]


def trained(trainer: Trainer, *, batch_size: int = BATCH, shuffle: bool = False, **more: Any) -> dict[str, Any]:
    """The same figures of the Trainer."""
    module = Classifier()
    trainer.fit(module, loader(batch_size, shuffle), loader(), **more)
    with trainer.runtime as runtime:
        return {
            "losses": runtime.reduce(torch.stack(module.losses), "mean").double(),
            "parameters": flat(module),
            "all parameters": runtime.gather(flat(module).unsqueeze(0)),
            "val_loss": float(trainer.callback_metrics["val_loss"]),
        }
