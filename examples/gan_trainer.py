"""The generative adversarial network of ``gan.py`` with the Trainer: manual optimization with two optimizers.

Run it as ``python examples/gan_trainer.py --devices 2``.
"""

from __future__ import annotations

from typing import Any

import torch
from command_line import arguments, trainer_arguments
from gan import make_data, make_models
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Trainer, seed_everything


class GAN(Module):
    """A generator of points and a discriminator, which learn in turn.

    Args:
        lr: The learning rate of both.
    """

    def __init__(self, lr: float = 5e-3) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.save_hyperparameters()
        self.generator, self.discriminator = make_models()

    def forward(self, noise: Tensor) -> Any:
        return self.generator(noise)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        points, noise = batch
        of_generator, of_discriminator = self.optimizers()
        real, fake = torch.ones_like(points[:, :1]), torch.zeros_like(points[:, :1])

        self.toggle_optimizer(of_discriminator)
        answers = self.discriminator(torch.cat([points, self(noise).detach()]))
        discriminator_loss = nn.functional.binary_cross_entropy_with_logits(answers, torch.cat([real, fake]))
        self.manual_backward(discriminator_loss)
        of_discriminator.step()
        of_discriminator.zero_grad()
        self.untoggle_optimizer(of_discriminator)

        self.toggle_optimizer(of_generator)
        answers = self.discriminator(self(noise))
        generator_loss = nn.functional.binary_cross_entropy_with_logits(answers, real)
        self.manual_backward(generator_loss)
        of_generator.step()
        of_generator.zero_grad()
        self.untoggle_optimizer(of_generator)

        self.log_dict({"discriminator_loss": discriminator_loss, "generator_loss": generator_loss}, prog_bar=True)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """How far the generated points are from the ring, and from each other."""
        generated = self(batch[1])
        self.log("distance", (generated.norm(dim=1) - 1).abs().mean(), prog_bar=True)
        self.log("spread", generated.std(0).mean())

    def configure_optimizers(self) -> Any:
        lr = self.hparams.lr
        return [
            torch.optim.Adam(network.parameters(), lr=lr, betas=(0.5, 0.999))
            for network in (self.generator, self.discriminator)
        ]


def main() -> None:
    """Train, then say how near the generated points are to the ring."""
    args = arguments(__doc__, epochs=60)
    torch.set_num_threads(1)  # more only wait for each other on networks this small
    seed_everything(0)
    data = make_data(args.items or 512)
    trainer = Trainer(**trainer_arguments(args))
    points = DataLoader(data, batch_size=16 // trainer.world_size, shuffle=True)  # 16 on all devices together
    trainer.fit(GAN(), points, DataLoader(data, batch_size=256), ckpt_path=args.ckpt_path)
    if trainer.is_global_zero:
        distance, spread = (float(trainer.callback_metrics[name]) for name in ("distance", "spread"))
        print(f"distance to the ring {distance:.4f}, spread {spread:.4f}")


if __name__ == "__main__":
    main()
