"""A generative adversarial network with two models and two optimizers, which learns points on a ring.

Run it as ``python examples/gan.py --devices 2``.
"""

from __future__ import annotations

import argparse
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Runtime as Accelerator
from core import get_logger, seed_everything

logger = get_logger(__name__)


def make_models() -> tuple[nn.Module, nn.Module]:
    """A generator of points from noise, and a discriminator of real points from generated ones."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    return generator, discriminator


def make_data(items: int = 256) -> TensorDataset:
    """Points on a ring, each with the noise that the generator gets next to it."""
    source = torch.Generator().manual_seed(1)
    angle = torch.rand(items, generator=source) * 2 * torch.pi
    points = torch.stack([angle.cos(), angle.sin()], 1)
    return TensorDataset(points, torch.randn(items, 4, generator=source))


def main() -> None:
    """Train both models in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="on all devices together")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    accelerator = Accelerator(devices=args.devices)
    seed_everything(0)
    generator, discriminator = make_models()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    loader = DataLoader(make_data(), args.batch_size // accelerator.num_processes, shuffle=True)
    generator, discriminator, generator_optimizer, discriminator_optimizer, loader = accelerator.prepare(
        generator, discriminator, generator_optimizer, discriminator_optimizer, loader
    )
    criterion = nn.BCEWithLogitsLoss()

    step = 0
    for _ in range(args.epochs):
        for points, noise in loader:
            ones, zeros = torch.ones_like(points[:, :1]), torch.zeros_like(points[:, :1])
            generated = generator(noise)

            answers = discriminator(torch.cat([points, generated.detach()]))
            discriminator_loss = criterion(answers, torch.cat([ones, zeros]))
            accelerator.backward(discriminator_loss)
            discriminator_optimizer.step()
            discriminator_optimizer.zero_grad()

            generator_loss = criterion(discriminator(generated), ones)
            accelerator.backward(generator_loss)
            generator_optimizer.step()
            generator_optimizer.zero_grad()
            discriminator_optimizer.zero_grad()  # the gradients that went through the discriminator

            losses = accelerator.reduce(torch.stack([discriminator_loss, generator_loss]), "mean").tolist()
            accelerator.print(f"step {step} loss {losses[0]!r} {losses[1]!r}")
            step += 1

    radius = generator(torch.randn(100, 4).to(accelerator.device)).norm(dim=1).mean()
    logger.info("the generated points have a mean radius of %.2f", radius)
    accelerator.end_training()


if __name__ == "__main__":
    main()
