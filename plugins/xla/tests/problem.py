"""What the tests train, and what plain loops on the CPU make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module

BATCH = 8
EPOCHS = 2
OPTIONS: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
    "logger": False,
}

Note = Callable[[str], None]


def data() -> TensorDataset:
    """64 items in a fixed order."""
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loader(batch_size: int = BATCH) -> DataLoader[Any]:
    """The items in batches, in their order."""
    return DataLoader(data(), batch_size=batch_size)


def net(norm: bool = True) -> nn.Sequential:
    """A small net, always the same; ``norm`` has it look at the batch as a whole."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12) if norm else nn.Identity(), nn.ReLU(), nn.Linear(12, 3))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """Momentum, so that a step depends on those before it."""
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


class Classifier(Module):
    """Keeps its losses, and the devices and dtypes that it sees.

    Args:
        norm: As in :func:`net`.
        note: What each forward pass and each step of the optimizer is told to.
    """

    def __init__(self, norm: bool = True, note: Note | None = None) -> None:
        super().__init__()
        self.net = net(norm)
        self.losses: list[Tensor] = []
        self.seen: set[str] = set()
        self._note = note

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        if self._note is not None:
            self._note("forward")
        inputs, labels = batch
        output = self.net(inputs)
        loss = nn.functional.cross_entropy(output, labels)
        self.seen |= {str(tensor.device) for tensor in (inputs, labels, output, *self.net.parameters())}
        self.seen.add(str(output.dtype).removeprefix("torch."))
        self.losses.append(loss.detach())  # not looked at, which would end the step
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The loss of one batch, without gradients."""
        if self._note is not None:
            self._note("evaluation")
        inputs, labels = batch
        inputs.mul_(1)  # as in a step that scales its inputs
        self.log("val_loss", nn.functional.cross_entropy(self.net(inputs), labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Momentum; each step is noted."""
        optimizer = sgd(self)
        note = self._note
        if note is not None:
            optimizer.register_step_post_hook(lambda *_: note("step"))
        return optimizer


def plain_losses(
    module: nn.Module,
    *,
    batch_size: int = BATCH,
    accumulate: int = 1,
    clip: float | None = None,
    autocast: bool = False,
) -> list[float]:
    """The losses of a loop written by hand, on the CPU; ``module`` is trained by it."""
    optimizer = sgd(module)
    losses = []
    for _ in range(EPOCHS):
        for index, (inputs, labels) in enumerate(loader(batch_size)):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(module(inputs), labels)
            (loss / accumulate).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            if (index + 1) % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return losses


def furthest(some: list[Any], others: list[float]) -> float:
    """The largest difference between two runs' losses, each of which has as many."""
    return max(abs(float(one) - other) for one, other in zip(some, others, strict=True))
