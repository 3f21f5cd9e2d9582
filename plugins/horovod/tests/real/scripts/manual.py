"""``python manual.py STRATEGY FILE``: two networks against each other, with two optimizers that the Module steps."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import flat
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_horovod import HorovodStrategy

from torch_hal import Module, Runtime, Trainer
from torch_hal.errors import CoreError
from torch_hal.strategies import DDPStrategy

NAME, FILE = sys.argv[1:]
ROWS = 39
"""Does not divide by the batches of two processes."""
said: dict[str, Any] = {}


class GAN(Module):
    """The generator's gradients come from two halves of the batch, exchanged once; each process uses another part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
        self.judges = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        return [first, torch.optim.SGD(self.judges.parameters(), lr=0.05, momentum=0.5)]

    def judge(self, rows: Tensor, real: bool) -> Tensor:
        scores = self.judges[self.trainer.global_rank](rows) + self.judges[0](rows)
        return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        rows, noise = batch
        generator, judge = self.optimizers()
        with generator.toggle_model(sync_grad=False):
            self.manual_backward(self.judge(self.generator(noise[::2]), True) / 2)
        with generator.toggle_model():
            self.manual_backward(self.judge(self.generator(noise[1::2]), True) / 2)
        self.clip_gradients(generator, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
        generator.step()
        generator.zero_grad()
        self.toggle_optimizer(judge)
        self.manual_backward(self.judge(rows, True) / 2)
        self.manual_backward(self.judge(self.generator(noise).detach(), False) / 2)
        judge.step()
        judge.zero_grad()
        self.untoggle_optimizer(judge)
        assert self.judges[2].weight.grad is None


def fit(name: str, options: dict[str, Any] | None = None, **settings: Any) -> None:
    """Note the parameters of both processes."""
    strategy: Any = HorovodStrategy(**(options or {})) if NAME == "horovod" else DDPStrategy()
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        max_epochs=2,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        **settings,
    )
    seed = torch.Generator().manual_seed(2)
    rows = TensorDataset(torch.randn(ROWS, 4, generator=seed) + 1, torch.randn(ROWS, 3, generator=seed))
    module = GAN()
    try:
        trainer.fit(module, DataLoader(rows, 4))
    except CoreError as error:
        said[name] = str(error)
        return
    with trainer.runtime as runtime:
        said[name] = {
            "parameters": flat(module),
            "all parameters": runtime.gather(flat(module).unsqueeze(0)),
            "steps": trainer.global_step,
        }


if __name__ == "__main__":
    for precision in ("32-true", "16-mixed"):
        fit(precision, precision=precision)
    fit("predivided", {"gradient_predivide_factor": 2.0})
    fit("fp16", {"compression": "fp16"})
    with Runtime(accelerator="cpu", strategy="horovod" if NAME == "horovod" else DDPStrategy(), devices=2) as last:
        last.launch()
        is_main = last.is_main_process
    if NAME == "horovod":
        fit("passes", {"backward_passes_per_step": 2})
        fit("after a failure")
    if is_main:
        torch.save(said, FILE)
