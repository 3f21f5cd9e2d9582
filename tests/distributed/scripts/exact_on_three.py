"""Eleven steps on three processes, saved after the fifth; ``resume`` continues from there. Leaves the parameters.

Arguments: front end, ``whole`` or ``resume``, the strategy, and arguments of ``DDPStrategy`` to use instead, as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from problem import leave
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Runtime, Trainer
from core.strategies import DDPStrategy

STEPS, SAVED_AFTER = 11, 5
CHECKPOINT = Path(os.environ["OUT"], "after_five")


class Odd(nn.Module):
    """Parameters of odd sizes, whose gradients come in another order than that in which they are registered."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.last = nn.Linear(23, 1)
        self.middle = nn.Linear(37, 23)
        self.scale = nn.Parameter(torch.rand(7))
        self.first = nn.Linear(7, 37)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.middle(self.first(inputs * self.scale).tanh()).tanh()
        loss: Tensor = self.last(nn.functional.dropout(hidden, 0.1, self.training)).square().mean()
        return loss


class Fitted(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Odd()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.model(batch[0])
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Save(Callback):
    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == SAVED_AFTER:
            trainer.save_checkpoint(CHECKPOINT)


class Sums(dict[str, Any]):
    """What each process has added up for itself; a text and a tensor differ at their ends only."""

    state_dict = dict.copy
    load_state_dict = dict.update


def loader() -> DataLoader[Any]:
    data = TensorDataset(torch.randn(3 * 5 * STEPS, 7, generator=torch.Generator().manual_seed(1)))
    return DataLoader(data, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(2))


def loop(runtime: Runtime) -> None:
    module = Odd()
    torch.manual_seed(5 + runtime.process_index)
    stepper = torch.optim.Adam(module.parameters(), lr=0.01)
    model, stepper, batches = runtime.prepare(module, stepper, loader())
    step, ranks, steps = 0, Sums(text="", tensor=torch.zeros(2000, dtype=torch.bfloat16)), Sums(sum=0)
    runtime.register_for_checkpointing(ranks, steps)
    if sys.argv[2] == "resume":
        runtime.load_state(CHECKPOINT)
        step = SAVED_AFTER
    for (inputs,) in batches:
        stepper.zero_grad()
        runtime.backward(model(inputs))
        stepper.step()
        step, steps["sum"] = step + 1, steps["sum"] + 1
        ranks["tensor"][-1] += runtime.process_index
        ranks["text"] = "a" * 2000 + str(int(ranks["tensor"][-1]))
        if step == SAVED_AFTER:
            runtime.save_state(CHECKPOINT)
    own = STEPS * runtime.process_index
    assert (step, steps["sum"], int(ranks["tensor"][-1]), ranks["text"][2000:]) == (STEPS, STEPS, own, str(own))
    leave(module, runtime.process_index)


def main() -> None:
    frontend, mode, name, options = sys.argv[1:]
    strategy: Any = DDPStrategy(**json.loads(options)) if json.loads(options) else name
    if frontend == "runtime":
        Runtime(accelerator="cpu", strategy=strategy, devices=3).launch(loop)
        return
    module = Fitted()
    torch.manual_seed(5)
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=3,
        max_epochs=1,
        callbacks=[Save()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, loader(), ckpt_path=CHECKPOINT if mode == "resume" else None)
    assert trainer.global_step == STEPS
    leave(module.model, trainer.runtime.process_index)


if __name__ == "__main__":
    main()
