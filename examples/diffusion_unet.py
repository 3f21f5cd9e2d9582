"""A diffusion model with a UNet of diffusers, which learns to remove noise from images of squares.

Run it as ``python examples/diffusion_unet.py --devices 2``. Needs ``pip install diffusers``.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.utils.data import DataLoader, Dataset

from core import Runtime as Accelerator
from core import get_logger, seed_everything

logger = get_logger(__name__)

TIMESTEPS = 100


class Squares(Dataset[dict[str, torch.Tensor]]):
    """Images of a bright square, each with the noise and the time step at which the model sees it."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        image = -torch.ones(1, 16, 16)
        row, column = torch.randint(0, 10, (2,), generator=generator).tolist()
        image[:, row : row + 6, column : column + 6] = 1
        noise = torch.randn(1, 16, 16, generator=generator)
        return {"image": image, "noise": noise, "timestep": torch.randint(TIMESTEPS, (), generator=generator)}


def make_model() -> Any:
    """A small UNet with random weights."""
    return UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


def main() -> None:
    """Train, then save the model and a sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="on all devices together")
    parser.add_argument("--project-dir", default="diffusion")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    accelerator = Accelerator(devices=args.devices, log_with="csv", project_dir=args.project_dir)
    seed_everything(0)
    model = make_model()
    noising = DDPMScheduler(num_train_timesteps=TIMESTEPS)
    loader = DataLoader(Squares(), args.batch_size // accelerator.num_processes, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, args.epochs * len(Squares()) // args.batch_size)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if accelerator.is_main_process:
        accelerator.init_trackers("squares", config=vars(args))

    step = 0
    for _ in range(args.epochs):
        for batch in loader:
            noisy = noising.add_noise(batch["image"], batch["noise"], batch["timestep"])
            predicted = model(noisy, batch["timestep"]).sample
            loss = torch.nn.functional.mse_loss(predicted, batch["noise"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            mean = accelerator.gather(loss).mean().item()
            accelerator.print(f"step {step} loss {mean!r}")
            accelerator.log({"loss": mean, "lr": scheduler.get_last_lr()[0]}, step=step)
            step += 1

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        unet: Any = accelerator.unwrap_model(model)
        unet.save_pretrained(f"{args.project_dir}/unet")
        image = torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)).to(accelerator.device)
        noising.set_timesteps(10)
        for timestep in noising.timesteps:
            with torch.no_grad():
                image = noising.step(unet(image, timestep).sample, timestep, image).prev_sample
        logger.info("a sample has values from %.2f to %.2f", image.min(), image.max())
    accelerator.end_training()


if __name__ == "__main__":
    main()
