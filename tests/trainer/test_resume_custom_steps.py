"""Resumed within an accumulation, a run whose step is customised ends bit for bit as the run that went on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from .gan import GAN, real_rows
from .regression import Regression, assert_same, loader, quiet
from .test_resume_within_an_epoch import SaveAt


class WarmsUp(Regression):
    """Sets the learning rate in each step, as Lightning's documentation shows."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (self.global_step + 1) / 5)


class Scaled(Regression):
    """Has its own backward, clearing and clipping."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        (loss * 2).backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        optimizer.zero_grad(set_to_none=False)

    def configure_gradient_clipping(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.3, gradient_clip_algorithm="norm")


class Rarely(Regression):
    """Optimizes manually, with the gradients of three batches in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch) / 3)
        if (batch_idx + 1) % 3 == 0:
            self.clip_gradients(optimizer, gradient_clip_val=0.3, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()


def gan() -> GAN:
    return GAN(accumulate=4, clip=0.2)


MODULES: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, Any]]] = {
    "optimizer_step": (WarmsUp, lambda: loader(shuffle=True), {"accumulate_grad_batches": 3}),
    "optimizer_step, 16-mixed": (WarmsUp, loader, {"accumulate_grad_batches": 3, "precision": "16-mixed"}),
    "backward, zero_grad and clipping": (Scaled, lambda: loader(shuffle=True), {"accumulate_grad_batches": 3}),
    "manual": (Rarely, lambda: loader(shuffle=True), {}),
    "manual, bf16-mixed": (Rarely, loader, {"precision": "bf16-mixed"}),
    "two optimizers": (gan, lambda: real_rows(6), {}),
}


@pytest.mark.parametrize("case", MODULES)
@pytest.mark.parametrize("at", [2, 4, 9, 11])
def test_within_an_accumulation(case: str, at: int, tmp_path: Path) -> None:
    """Saved after a batch whose gradients wait for a step, in the first epoch or the second."""
    make, loaders, settings = MODULES[case]

    def run(seed: int, ckpt_path: Path | None, saver: SaveAt) -> Any:
        torch.manual_seed(seed)
        module = make()
        trainer = quiet(max_epochs=3, callbacks=[saver], **settings)
        trainer.fit(module, loaders(), ckpt_path=ckpt_path)
        return module, trainer.global_step

    expected = run(3, None, SaveAt(tmp_path / "c", at))
    found = run(99, tmp_path / "c", again := SaveAt())
    assert found[1] == expected[1]
    assert again.batches > 0
    assert_same(found[0], expected[0])
