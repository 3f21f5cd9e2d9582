"""A causal language model with gradient accumulation, checkpoints, and resuming in the middle of an epoch.

Run it as ``python examples/causal_lm.py --devices 2``; ``--stop-after 5`` stops early, and ``--resume`` continues.
Needs ``pip install transformers``.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from core import ProjectConfiguration, get_logger, seed_everything
from core import Runtime as Accelerator

logger = get_logger(__name__)

VOCABULARY, LENGTH = 64, 24


def make_model() -> Any:
    """A small Llama with random weights."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **sizes))


def make_data(items: int = 144) -> Any:
    """Sequences that count upwards, from a random token and with a random stride."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randint(VOCABULARY, (items, 1), generator=generator)
    stride = torch.randint(1, 4, (items, 1), generator=generator)
    tokens = (start + stride * torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in tokens]


def main() -> None:
    """Train; with ``--resume`` from the newest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="of a micro-batch, on all devices together")
    parser.add_argument("--accumulation", type=int, default=4, help="micro-batches in a step")
    parser.add_argument("--save-every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--stop-after", type=int, default=None, help="end after this step, as if interrupted")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--project-dir", default="causal_lm")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    project = ProjectConfiguration(project_dir=args.project_dir, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(
        devices=args.devices, gradient_accumulation_steps=args.accumulation, project_config=project
    )
    seed_everything(0)
    loader = DataLoader(make_data(), args.batch_size // accelerator.num_processes, shuffle=True)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if args.resume:
        accelerator.load_state()
        logger.info("resumed at step %d of epoch %d", progress.step, progress.epoch)

    losses = []
    while progress.epoch < args.epochs:
        for batch in loader:  # after a resume, the rest of the epoch
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                losses.append(accelerator.gather(loss).mean().item())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.print(f"step {progress.step} loss {sum(losses) / len(losses)!r}")
                losses.clear()
                progress.step += 1
                if progress.step % args.save_every == 0:
                    accelerator.save_state()
                if progress.step == args.stop_after:
                    return
        progress.epoch += 1
    accelerator.end_training()


class Progress:
    """The position in the loop, saved with each checkpoint."""

    def __init__(self) -> None:
        self.epoch = self.step = 0

    def state_dict(self) -> dict[str, int]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


if __name__ == "__main__":
    main()
