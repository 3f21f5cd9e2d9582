"""What the programs in ``examples/`` compute, in plain torch on one process with whole batches; prints each loss.

Run as ``python plain.py PROGRAM``, with ``examples/`` on the path.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader


def steps(
    model: nn.Module,
    loader: Iterable[Any],
    epochs: int,
    loss_of: Callable[[Any], Any],
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    clip: bool = True,
) -> Iterator[float]:
    """Train; yields the loss of each step."""
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            yield loss.item()


def sequence_classification(program: Any) -> Iterator[float]:
    from transformers import get_scheduler

    order = torch.Generator().manual_seed(0)
    loader = DataLoader(program.make_data(256, 1), 16, shuffle=True, generator=order, collate_fn=program.collate)
    model = program.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=4, num_training_steps=48)
    model.train()
    return steps(model, loader, 3, lambda batch: model(**batch).loss, optimizer, scheduler)


def causal_lm(program: Any) -> Iterator[float]:
    """A step is one batch of four times eight sequences; the last of an epoch has the sixteen that remain."""
    model = program.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    loader = DataLoader(program.make_data(), 32, shuffle=True)
    return steps(model, loader, 2, lambda batch: model(**batch).loss, optimizer, scheduler)


def diffusion_unet(program: Any) -> Iterator[float]:
    from diffusers import DDPMScheduler
    from diffusers.optimization import get_cosine_schedule_with_warmup

    model = program.make_model()
    noising = DDPMScheduler(num_train_timesteps=program.TIMESTEPS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 16)

    def loss_of(batch: Any) -> Any:
        noisy = noising.add_noise(batch["image"], batch["noise"], batch["timestep"])
        return (model(noisy, batch["timestep"]).sample - batch["noise"]).square().mean()

    return steps(model, DataLoader(program.Squares(), 8, shuffle=True), 2, loss_of, optimizer, scheduler)


def lora(program: Any) -> Iterator[float]:
    model = program.make_adapted_model()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    loader = DataLoader(program.make_data(), 16, shuffle=True)
    return steps(model, loader, 1, lambda batch: model(**batch).loss, optimizer, clip=False)


def gan(program: Any) -> Iterator[float]:
    generator, discriminator = program.make_models()
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for _ in range(2):
        for points, noise in DataLoader(program.make_data(), 32, shuffle=True):
            generated = generator(noise)
            loss: Any
            real, fake = discriminator(points), discriminator(generated.detach())
            loss = (nn.functional.softplus(-real).mean() + nn.functional.softplus(fake).mean()) / 2
            of_discriminator.zero_grad()
            loss.backward()
            of_discriminator.step()
            yield loss.item()
            loss = nn.functional.softplus(-discriminator(generated)).mean()
            of_generator.zero_grad()
            loss.backward()
            of_generator.step()
            yield loss.item()


def uneven_evaluation(program: Any) -> Iterator[float]:
    model, (features, labels) = program.make_model(), program.make_data().tensors
    logits = model(features)
    print("predictions", *logits.argmax(1).tolist())
    print(f"accuracy {(logits.argmax(1) == labels).float().mean().item():.4f} of {len(labels)}")
    yield nn.functional.cross_entropy(logits, labels).item()


if __name__ == "__main__":
    torch.manual_seed(0)
    for loss in globals()[sys.argv[1]](importlib.import_module(sys.argv[1])):
        print("loss", repr(loss))
