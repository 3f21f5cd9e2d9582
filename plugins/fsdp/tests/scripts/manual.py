"""A Module with manual optimization on two processes: two networks against each other, under DDP and under FSDP."""

from __future__ import annotations

from typing import Any

import torch
from problem import OUT, numbers, say, whole_state
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_fsdp import FSDPStrategy

import torch_hal
from torch_hal.errors import ConfigurationError
from torch_hal.strategies import DDPStrategy

said: dict[str, Any] = {}


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Its two blocks are gathered one by one, the other layers with the whole."""
    blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), *blocks, nn.Tanh(), nn.Linear(8, outputs))


class GAN(torch_hal.Module):
    """As Lightning's users write it; the generator's gradients come from two halves of the batch, exchanged once."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.automatic_optimization = False
        self.generator = network(3, 4)
        self.judges = nn.ModuleDict({"first": network(4, 1)})
        self.register_buffer("steps", torch.zeros(()))

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        return [first, torch.optim.SGD(self.judges.parameters(), lr=0.05, momentum=0.5)]

    def judge(self, rows: Tensor, real: bool) -> Tensor:
        said = self.judges["first"](rows)
        return nn.functional.binary_cross_entropy_with_logits(said, torch.full_like(said, float(real)))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        rows, noise = batch
        generator, judge = self.optimizers()
        with generator.toggle_model(sync_grad=False):
            self.manual_backward(self.judge(self.generator(noise[::2]), True) / 2)
        with generator.toggle_model():
            loss = self.judge(self.generator(noise[1::2]), True)
            self.manual_backward(loss / 2)
            assert all(parameter.grad is None for parameter in self.judges.parameters())
        self.clip_gradients(generator, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
        generator.step()
        generator.zero_grad()
        self.toggle_optimizer(judge)
        fake = self.generator(noise).detach()
        self.manual_backward((self.judge(rows, True) + self.judge(fake, False)) / 2)
        self.manual_backward(self.judge(fake + 1, False) / 4)
        judge.step()
        judge.zero_grad()
        self.untoggle_optimizer(judge)
        self.steps += 1
        self.log("loss", loss, on_step=False, on_epoch=True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("score", self.judge(batch[0], True), on_step=True, on_epoch=True)


class OwnParameter(GAN):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


class Kept(torch_hal.Callback):
    """Gathers the module at the end of a fit, while the processes are still together."""

    def on_fit_end(self, trainer: torch_hal.Trainer, module: torch_hal.Module) -> None:
        self.state = whole_state(module)


def trainer(name: str, strategy: Any, **options: Any) -> torch_hal.Trainer:
    return torch_hal.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        default_root_dir=OUT / name,
        **options,
    )


def data(rows: int) -> DataLoader[Any]:
    seed = torch.Generator().manual_seed(2)
    return DataLoader(TensorDataset(torch.randn(rows, 4, generator=seed) + 1, torch.randn(rows, 3, generator=seed)), 6)


def fit(name: str, strategy: Any, ckpt_path: Any = None, **options: Any) -> torch_hal.Module:
    kept, module = Kept(), GAN()
    run = trainer(name, strategy, max_epochs=2, callbacks=[kept], **options)
    run.fit(module, data(36), data(15), ckpt_path=ckpt_path)
    said[name] = {
        "parameters": numbers(list(kept.state.values())),
        "metrics": {key: float(value) for key, value in run.callback_metrics.items()},
        "steps": run.global_step,
    }
    return module


def refused(name: str, strategy: Any, module: torch_hal.Module) -> None:
    try:
        trainer(name, strategy, max_epochs=1).fit(module, data(36))
    except ConfigurationError as error:
        said[f"refused {name}"] = str(error)


fit("ddp", DDPStrategy())
module = fit("fsdp", "fsdp", enable_checkpointing=True)
said["later"] = trainer("later", "fsdp").validate(module, data(15))[0]
(path,) = (OUT / "fsdp").rglob("*.ckpt")
fit("mixed", "fsdp", precision="bf16-mixed")
fit("ddp mixed", DDPStrategy(), precision="bf16-mixed")
refused("own", "fsdp", OwnParameter())
refused("released", FSDPStrategy(reshard_after_forward=False), GAN())
with torch_hal.Runtime(accelerator="cpu", strategy=DDPStrategy(), devices=2) as last:
    last.launch()
    say(last, said)
