"""Losses that are no mean of their microbatches' losses, on two processes. The argument: torch's schedule."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from problem import LENGTH, Transformer, batch_of, loss_of, make, say
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_parallel import ModelParallelStrategy

import torch_hal
from torch_hal import Runtime
from torch_hal.errors import ConfigurationError

SCHEDULE = sys.argv[1]
IGNORED = -100
text, targets = batch_of(0)
masked = targets.clone()
masked[:5, 3:] = IGNORED
share = (masked != IGNORED).float().mean()
said: dict[str, Any] = {}


def ignoring(scores: Tensor, wanted: Tensor, reduction: str = "mean") -> Tensor:
    return cross_entropy(scores.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED, reduction=reduction)


def heard(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What ``function`` returns, or its error, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function()
        except ConfigurationError as error:
            result = str(error)
    return result, [str(one.message) for one in caught if "microbatches" in str(one.message)]


LOSSES: dict[str, tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]] = {
    "mean": (targets, loss_of),
    "sum": (targets, lambda y, t: ignoring(y, t, "sum")),
    "constant": (targets, lambda y, t: ignoring(y, t, "sum") / targets.numel()),
    "ignored": (masked, ignoring),
    "shared": (masked, lambda y, t: ignoring(y, t, "sum") / (t.numel() * share)),
    "random": (targets, lambda y, t: loss_of(dropout(y), t)),
    "raises": (targets, lambda y, t: loss_of(y.view(len(text) // 4, LENGTH, -1), t)),
}
for name, (wanted, loss_fn) in LOSSES.items():
    strategy: Any = ModelParallelStrategy(pipeline=2, microbatches=4, schedule=SCHEDULE)
    with Runtime(accelerator="cpu", devices=2, strategy=strategy) as runtime:
        model, optimizer = runtime.prepare(*make())

        def steps(
            strategy: Any = strategy, model: Any = model, wanted: Tensor = wanted, loss_fn: Any = loss_fn
        ) -> list[float]:
            return [float(strategy.forward_backward(model, text, wanted, loss_fn)) for _ in range(2)]

        found, warned = heard(steps)
        others = runtime.strategy.all_gather_object(found)
        said[name] = {"found": found, "same": all(one == found for one in others), "warned": warned}
        with torch.no_grad():
            said[name]["whole"] = float(ignoring(model(text), wanted))


class Counts(torch_hal.Module):
    """Collects, counts and adds in its step, as metrics do."""

    seen: Tensor

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.model, self.reduction = Transformer(), reduction
        self.calls, self.items = 0, [0]
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        scores = self.model(batch[0])
        self.calls += 1
        self.items.append(len(scores))
        self.seen += len(scores)
        loss = ignoring(scores, batch[1], self.reduction)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-2)

    def on_train_end(self) -> None:
        counts = (self.calls, sum(self.items), float(self.seen))
        said.setdefault("counts", self.trainer.strategy.all_gather_object(counts))


def fit(reduction: str, wanted: Tensor) -> Any:
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    strategy = ModelParallelStrategy(pipeline=2, microbatches=4, schedule=SCHEDULE)
    trainer = torch_hal.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, **quiet)
    return trainer.fit(Counts(reduction), DataLoader(TensorDataset(text, wanted), batch_size=8))


said["fit mean"] = heard(lambda: fit("mean", targets))
said["fit ignored"] = heard(lambda: fit("mean", masked))
said["fit sum"] = heard(lambda: fit("sum", targets))
with Runtime(accelerator="cpu", devices=2, strategy="ddp") as last:
    last.launch()
    say(last, said)
