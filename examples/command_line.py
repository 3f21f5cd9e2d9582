"""The command line of the examples for the Trainer: hardware, strategy and precision, length, logs and checkpoints."""

from __future__ import annotations

import argparse
from typing import Any

from core.callbacks import ModelCheckpoint


def arguments(description: str | None, epochs: int = 15) -> argparse.Namespace:
    """The arguments that all examples have.

    Args:
        description: What the help begins with.
        epochs: The default of ``--epochs``.
    """
    parser = argparse.ArgumentParser(description=description)
    for name in ("accelerator", "strategy", "devices", "precision"):
        parser.add_argument(f"--{name}", default="auto")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--items", type=int, help="train on so many items only")
    parser.add_argument("--default_root_dir", help="the folder for logs and checkpoints")
    parser.add_argument("--logger", nargs="*", help="such as: csv tensorboard")
    parser.add_argument("--log_every_n_steps", type=int, default=10)
    parser.add_argument("--checkpoint_every", type=int, help="the steps from one checkpoint to the next")
    parser.add_argument("--ckpt_path", help='a checkpoint to resume from, or "last" for the newest')
    return parser.parse_args()


def trainer_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Those of the arguments that the Trainer takes."""
    names = ("accelerator", "strategy", "devices", "precision", "default_root_dir", "logger", "log_every_n_steps")
    every = args.checkpoint_every
    return {
        **{name: getattr(args, name) for name in names},
        "max_epochs": args.epochs,
        "callbacks": [ModelCheckpoint(every_n_train_steps=every)] if every else [],
        "enable_checkpointing": bool(every),
    }
