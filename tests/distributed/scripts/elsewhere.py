"""A process that is in another call than the others, of which no exception tells it; or is only late.

The arguments: the number of processes, the rank that does something else, what it does, what the others do, and the
strategy, ddp unless given.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Runtime, Trainer


class Linear(Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer, self.rank = nn.Linear(4, 1), rank

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.layer(batch).mean()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_rank == self.rank and batch_idx == 1:
            self.trainer.strategy.barrier()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def work() -> None:
    """Compute for longer than it takes to find who is elsewhere, mostly in backward passes."""
    weight = torch.ones(600, 600, requires_grad=True)
    end = time.monotonic() + 12
    while time.monotonic() < end:
        (weight @ weight @ weight).sum().backward()  # type: ignore[no-untyped-call]


def calls_of(runtime: Runtime, names: str) -> None:
    model = runtime.prepare(nn.Linear(4, 1))
    runtime.backward(model(torch.ones(2, 4)).sum())
    items: Any = torch.ones(8, 4)
    calls: dict[str, Callable[[], object]] = {
        "wait": runtime.wait_for_everyone,
        "reduce": lambda: runtime.reduce(1.0),
        "backward": lambda: runtime.backward(model(torch.ones(2, 4)).sum()),
        "strategy.all_gather": lambda: runtime.strategy.all_gather(torch.ones(1)),
        "dist.barrier": dist.barrier,
        "prepare": lambda: runtime.prepare(DataLoader(items)),
        "save_state": lambda: runtime.save_state("saved"),
        "work": work,
    }
    for name in names.split("+"):
        if name != "nothing":
            print(f"waits at {time.monotonic()}", flush=True)
            calls[name]()
    print(f"rank {runtime.process_index} is through", flush=True)


def each(runtime: Runtime, rank: int, own: str, others: str) -> None:
    calls_of(runtime, own if runtime.process_index == rank else others)


def main() -> None:
    processes, rank, own, others = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
    strategy = sys.argv[5] if len(sys.argv) > 5 else "ddp"
    settings: dict[str, Any] = {"accelerator": "cpu", "devices": processes, "strategy": strategy}
    if own == "hook":
        quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
        items: Any = torch.ones(8 * processes, 4)
        Trainer(max_epochs=1, **quiet, **settings).fit(Linear(rank), DataLoader(items, batch_size=2))
    Runtime(**settings).launch(each, rank, own, others)


if __name__ == "__main__":
    main()
