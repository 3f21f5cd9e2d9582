"""Runs programs of ``examples/`` from a folder, and records what each fit computes in each step.

Run as ``python ported.py FOLDER RECORDS``. The imports in the folder decide whether core or Lightning trains.
"""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

ARGUMENTS = ["--accelerator=cpu", "--devices=1", "--precision=32-true", "--epochs=2", "--items=256"]
CLI = [
    *("fit", "--seed_everything=1", "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.max_epochs=2"),
    *("--data.items=256", "--model.lr=0.002"),
]
PROGRAMS = {
    "autoencoder": (ARGUMENTS, 1, ["loss"]),
    "image_classifier": (ARGUMENTS, 1, ["loss"]),
    "digits_trainer": (ARGUMENTS, 1, ["loss"]),
    "transformer": (ARGUMENTS, 1, ["loss"]),
    "fine_tuning": (ARGUMENTS, 2, ["loss"]),
    "gan_trainer": (ARGUMENTS, 1, ["discriminator_loss", "generator_loss"]),
    "reinforcement_learning": (ARGUMENTS, 1, ["steps"]),
    "image_classifier_cli": (CLI, 1, ["loss"]),
}
"""The arguments of each program, how many fits it has, and what it logs in a step."""


class Ended(BaseException):
    """The last fit of a program has ended."""


def main(folder: Path, records: Path) -> None:
    """Run all programs."""
    sys.path.insert(0, str(folder))
    front = importlib.import_module("command_line")
    base = front.ModelCheckpoint.__mro__[1].__mro__
    callback: Any = next(kind for kind in base if kind.__name__ == "Callback")
    trainer_class = importlib.import_module("autoencoder").Trainer
    fit = trainer_class.fit
    found: dict[str, Any] = {program: [] for program in PROGRAMS}
    running = ""

    @functools.wraps(fit)
    def recorded_fit(self: Any, *args: Any, **kwargs: Any) -> None:
        _, number, logged = PROGRAMS[running]
        steps: list[list[float]] = []

        class Record(callback):  # type: ignore[misc]
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                steps.append([float(trainer.callback_metrics[name]) for name in logged])

        self.callbacks.append(Record())
        fit(self, *args, **kwargs)
        module = args[0] if args else kwargs["model"]
        found[running].append({"steps": steps, "module": module.state_dict(), "metrics": dict(self.callback_metrics)})
        if len(found[running]) == number:
            raise Ended

    trainer_class.fit = recorded_fit
    for running, (arguments, *_) in PROGRAMS.items():
        sys.argv[1:] = arguments
        with suppress(Ended):
            importlib.import_module(running).main()
    torch.save(found, records)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
