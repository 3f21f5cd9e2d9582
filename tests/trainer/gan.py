"""Two networks that are trained against each other, with two optimizers, and the same loop in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module

__all__ = ["GAN", "networks", "real_rows", "train_by_hand"]

ROWS = 36


def networks() -> tuple[nn.Sequential, nn.Sequential]:
    """The generator and the discriminator; both have parameters that only some batches use."""
    torch.manual_seed(5)
    generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    discriminator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    return generator, discriminator


def real_rows(batch_size: int, rows: int = ROWS) -> DataLoader[Any]:
    """Each row with the noise that a fake is made from, so that a batch needs no random numbers."""
    seed = torch.Generator().manual_seed(2)
    data = TensorDataset(torch.randn(rows, 4, generator=seed) + 1, torch.randn(rows, 3, generator=seed))
    return DataLoader(data, batch_size=batch_size)


def judge(discriminator: nn.Module, rows: Tensor, real: bool) -> Tensor:
    """The loss of the discriminator's judgement, a mean over the batch."""
    said = discriminator(rows)
    return nn.functional.binary_cross_entropy_with_logits(said, torch.full_like(said, float(real)))


class GAN(Module):
    """As Lightning's users write it.

    Args:
        toggles: Whether only the parameters of the optimizer that is stepped require gradients.
        accumulate: Steps after every so many batches.
        clip: Clips the generator's gradients to this norm.
    """

    def __init__(self, toggles: bool = True, accumulate: int = 1, clip: float | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = networks()
        self.toggles, self.accumulate, self.clip = toggles, accumulate, clip

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        second = torch.optim.SGD(self.discriminator.parameters(), lr=0.05, momentum=0.5)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(first, 0.9)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        rows, noise = batch
        for_generator, for_discriminator = self.optimizers()
        steps = (batch_idx + 1) % self.accumulate == 0

        if self.toggles:
            self.toggle_optimizer(for_generator)
        loss = judge(self.discriminator, self.generator(noise), True)
        self.manual_backward(loss / self.accumulate)
        if steps:
            if self.clip is not None:
                self.clip_gradients(for_generator, gradient_clip_val=self.clip, gradient_clip_algorithm="norm")
            for_generator.step()
            for_generator.zero_grad()
        if self.toggles:
            self.untoggle_optimizer(for_generator)
            self.toggle_optimizer(for_discriminator)
        fake = self.generator(noise).detach()
        # In two passes: the gradients of both are averaged over processes.
        self.manual_backward(judge(self.discriminator, rows, True) / 2 / self.accumulate)
        self.manual_backward(judge(self.discriminator, fake, False) / 2 / self.accumulate)
        if steps:
            for_discriminator.step()
            for_discriminator.zero_grad()
        if self.toggles:
            self.untoggle_optimizer(for_discriminator)
        self.log("generator_loss", loss)

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()


def train_by_hand(epochs: int, batch_size: int, accumulate: int = 1, clip: float | None = None) -> dict[str, Tensor]:
    """The same in plain torch; what the module's parameters must be."""
    generator, discriminator = networks()
    first = torch.optim.Adam(generator.parameters(), lr=0.01)
    second = torch.optim.SGD(discriminator.parameters(), lr=0.05, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(first, 0.9)
    held: dict[nn.Parameter, Tensor] = {}
    for _ in range(epochs):
        for index, (rows, noise) in enumerate(real_rows(batch_size)):
            steps = (index + 1) % accumulate == 0
            own, others = list(generator.parameters()), list(discriminator.parameters())
            loss = judge(discriminator, generator(noise), True) / accumulate
            _add(held, own, torch.autograd.grad(loss, own))
            if steps:
                _use(held, own)
                if clip is not None:
                    nn.utils.clip_grad_norm_(own, clip)
                first.step()
                first.zero_grad()
            fake = generator(noise).detach()
            for judged in (judge(discriminator, rows, True), judge(discriminator, fake, False)):
                _add(held, others, torch.autograd.grad(judged / 2 / accumulate, others))
            if steps:
                _use(held, others)
                second.step()
                second.zero_grad()
        scheduler.step()
    return {
        **{f"generator.{name}": value for name, value in generator.state_dict().items()},
        **{f"discriminator.{name}": value for name, value in discriminator.state_dict().items()},
    }


def _add(held: dict[nn.Parameter, Tensor], parameters: list[nn.Parameter], gradients: Any) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        held[parameter] = held[parameter] + gradient if parameter in held else gradient


def _use(held: dict[nn.Parameter, Tensor], parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = held.pop(parameter)
