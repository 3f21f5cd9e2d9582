"""Programs that a number draws, from settings that seldom meet: each trains as plain torch does, and resumes exactly.

``python tests/faults/test_combinations.py 17`` trains number 17, and prints what it is and what is wrong. The session
``exhaustive`` draws 48, or as many as the environment variable ``COMBINATIONS`` says.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import core

SLOW = (0, 1, 2, 3, 4, 5, 6, 7)
NUMBERS = [
    pytest.param(number, marks=pytest.mark.slow if number in SLOW else pytest.mark.exhaustive)
    for number in range(int(os.environ.get("COMBINATIONS", "48")))
]
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(3))
ROWS = TensorDataset(torch.arange(60), X, X.sum(1, keepdim=True).sin())
HELD_OUT = range(43, 56)
QUIET: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)

Result = tuple[dict[str, Tensor], list[float], float]
"""The weights, the losses of the validations, and the learning rate."""


class Stream(IterableDataset[Any]):
    """The first rows in order."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return (ROWS[number] for number in range(self.items))


class Program:
    """What is trained, and how; the same for the same number."""

    def __init__(self, number: int) -> None:
        generator = random.Random(number)
        draw = generator.choice
        self.number = number
        self.frontend = draw(["Trainer", "Runtime"])
        self.devices = draw([1, 2, 2, 3])
        self.strategy = draw(["ddp", "ddp", "ddp_sharded"]) if self.devices > 1 else "single_device"
        self.precision = draw(["32-true", "32-true", "bf16-mixed", "64-true"])
        self.accumulate = draw([1, 2, 3])
        self.clip = draw([None, "norm", "value"])
        self.optimizer = draw(["SGD", "Adam", "AdamW"])
        self.schedule = draw([None, "step", "epoch"])
        self.order = draw(["in order", "shuffled", "stream"])
        self.items, self.size = draw([17, 24, 25, 36]), draw([2, 3, 4])
        self.has_norm = draw([False, False, True])
        self.drop_last = self.has_norm or draw([False, True])  # a single item has no variance
        self.epochs = draw([1, 2, 3])
        self.saved_after = generator.random()
        """Which part of its batches the run has trained on when it writes the checkpoint that another one resumes."""

    @property
    def settings(self) -> dict[str, Any]:
        """Those that both front ends have."""
        names = ("devices", "strategy", "precision")
        return {"accelerator": "cpu", "sync_batchnorm": True, **{name: getattr(self, name) for name in names}}

    def network(self) -> nn.Sequential:
        """With the same weights each time."""
        torch.manual_seed(self.number)
        norm = nn.BatchNorm1d(6) if self.has_norm else nn.Identity()
        tied = nn.Linear(6, 6)
        # A bias before batch norm has a gradient of rounding errors, which Adam divides by their own size.
        first = nn.Linear(4, 6, bias=not self.has_norm)
        network = nn.Sequential(first, norm, nn.Tanh(), tied, nn.Tanh(), tied, nn.Linear(6, 1))
        return network.double() if self.precision == "64-true" else network

    def optimizers(self, network: nn.Module) -> tuple[torch.optim.Optimizer, StepLR]:
        """An optimizer, and its schedule, which changes nothing if there is none."""
        options: dict[str, Any] = {"lr": 0.05, "momentum": 0.9} if self.optimizer == "SGD" else {"lr": 0.01}
        optimizer: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)(network.parameters(), **options)
        return optimizer, StepLR(optimizer, 2, 0.7 if self.schedule else 1.0)

    def loader(self, drop_last: bool) -> DataLoader[Any]:
        """A new one, which begins with the order of epoch 0."""
        rest: dict[str, Any] = {"batch_size": self.size, "drop_last": drop_last}
        if self.order == "stream":
            return DataLoader(Stream(self.items), **rest)
        rows = Subset(ROWS, range(self.items))
        return DataLoader(rows, shuffle=self.order == "shuffled", generator=torch.Generator().manual_seed(1), **rest)

    def steps(self, loader: DataLoader[Any]) -> list[list[list[int]]]:
        """The numbers of the items in each process's batches of an epoch, as docs/data.md divides them."""
        numbers, n = [int(item) for batch in loader for item in batch[0]], self.devices
        parts = []
        for start in range(0, len(numbers), n * self.size):
            chunk = numbers[start : start + n * self.size]
            if self.drop_last and len(chunk) < n * self.size:
                break
            size, missing = math.ceil(len(chunk) / n), -len(chunk) % n
            is_sent = self.order == "stream" and self.frontend == "Runtime"  # by process 0, which pads each by itself
            chunk += (chunk if is_sent else numbers)[:missing]
            parts.append([chunk[rank * size : (rank + 1) * size] for rank in range(n)])
        return parts


def squares(network: nn.Module, batch: Any) -> Tensor:
    dtype = next(network.parameters()).dtype
    errors: Tensor = network(batch[1].to(dtype)).to(dtype) - batch[2].to(dtype)
    return errors.square()


def held_out() -> DataLoader[Any]:
    return DataLoader(Subset(ROWS, HELD_OUT), batch_size=3)


class Regression(core.Module):
    """The network, for the Trainer; keeps the losses of validations, and saves after batch number ``at``."""

    def __init__(self, program: Program, at: int, path: Path) -> None:
        super().__init__()
        self.program, self.at, self.path = program, at, path
        self.network, self.losses, self.batches = program.network(), list[float](), 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return squares(self.network, batch).mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1
        if self.batches == self.at:
            self.trainer.save_checkpoint(self.path)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", squares(self.network, batch).mean(), batch_size=len(batch[0]))
        self.log("numbers", batch[0].sum(), reduce_fx="sum")

    def on_validation_end(self) -> None:
        found = self.trainer.callback_metrics
        assert found["numbers"] == sum(HELD_OUT), "an item was validated twice, or not at all"
        self.losses.append(float(found["loss"]))

    def configure_optimizers(self) -> Any:
        optimizer, schedule = self.program.optimizers(self.network)
        return [optimizer], [{"scheduler": schedule, "interval": self.program.schedule or "epoch"}]


def with_trainer(program: Program, at: int, path: Path, **resume: Any) -> Result:
    module = Regression(program, at, path)
    trainer = core.Trainer(
        **program.settings,
        max_epochs=program.epochs,
        accumulate_grad_batches=program.accumulate,
        gradient_clip_val=0.5 if program.clip else None,
        gradient_clip_algorithm=program.clip or "norm",
        **QUIET,
    )
    trainer.num_sanity_val_steps = 0
    trainer.fit(module, program.loader(program.drop_last), held_out(), **resume)
    return module.network.state_dict(), module.losses, trainer.optimizers[0].param_groups[0]["lr"]


class Done(dict[str, int]):
    """The number of epochs and batches that the loop has finished."""

    state_dict = dict.copy
    load_state_dict = dict.update


def with_runtime(program: Program, at: int, path: Path, ckpt_path: Path | None = None) -> Result:
    network, losses, done = program.network(), list[float](), Done(epochs=0, batches=0)
    with core.Runtime(**program.settings, gradient_accumulation_steps=program.accumulate) as runtime:
        model, loader = runtime.prepare(network, program.loader(program.drop_last))
        optimizer, schedule = runtime.prepare(*program.optimizers(model))
        unseen = runtime.prepare_data_loader(held_out(), evaluation=True)
        runtime.register_for_checkpointing(done)
        if ckpt_path:
            runtime.load_state(ckpt_path)
        while done["epochs"] < program.epochs:
            for batch in loader:
                with runtime.accumulate(model):
                    runtime.backward(squares(model, batch).mean())
                    if program.clip:
                        getattr(runtime, f"clip_grad_{program.clip}_")(model.parameters(), 0.5)
                    optimizer.step()
                    if program.schedule == "step":
                        schedule.step()
                    optimizer.zero_grad()
                done["batches"] += 1
                if done["batches"] == at:
                    runtime.save_state(path)
            if program.schedule != "step":
                schedule.step()
            done["epochs"] += 1
            model.eval()
            with torch.no_grad():
                pairs = [runtime.gather_for_metrics((batch[0], squares(model, batch))) for batch in unseen]
            model.train()
            numbers, errors = map(torch.cat, zip(*pairs, strict=True))
            assert numbers.tolist() == [*HELD_OUT], "an item was validated twice, or not at all"
            losses.append(float(errors.mean()))
    return network.state_dict(), losses, optimizer.param_groups[0]["lr"]


def with_torch(program: Program) -> tuple[Result, int]:
    """The batches of all processes in one, and how many each process has."""
    network, loader, losses, count = program.network(), program.loader(drop_last=False), list[float](), 0
    optimizer, schedule = program.optimizers(network)
    low = partial(torch.autocast, "cpu", torch.bfloat16, enabled=program.precision == "bf16-mixed")
    for _ in range(program.epochs):
        steps = program.steps(loader)
        count += len(steps)
        for window in (steps[start : start + program.accumulate] for start in range(0, len(steps), program.accumulate)):
            for batches in window:
                with low():
                    errors = squares(network, ROWS[list(chain(*batches))])
                size = program.accumulate if program.frontend == "Trainer" else len(window)
                (errors.mean() / size).backward()  # type: ignore[no-untyped-call]
            if program.clip:
                getattr(nn.utils, f"clip_grad_{program.clip}_")(network.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            if program.schedule == "step":
                schedule.step()
        if program.schedule != "step":
            schedule.step()
        network.eval()
        with torch.no_grad(), low():
            losses.append(float(squares(network, ROWS[HELD_OUT.start : HELD_OUT.stop]).mean()))
        network.train()
    return (network.state_dict(), losses, optimizer.param_groups[0]["lr"]), count


def differences(program: Program, path: Path) -> Iterator[str]:
    """What is wrong with this process of a run."""
    run = with_trainer if program.frontend == "Trainer" else with_runtime
    (weights, losses, lr), count = with_torch(program)
    at, error = 1 + int(program.saved_after * count), 3e-2 if program.precision == "bf16-mixed" else 1e-5
    whole = run(program, at, path)
    torch.manual_seed(2)
    again = run(program, 0, path, ckpt_path=path)
    for name, value in weights.items():
        if not torch.allclose(whole[0][name].double(), value.double(), error, error):
            yield f"{name} differs from plain torch's"
        if not torch.equal(again[0][name], whole[0][name]):
            yield f"resumed after {at} of {count} batches: {name} differs"
    if [*whole[1], whole[2]] != pytest.approx([*losses, lr], rel=error, abs=error):
        yield f"losses and learning rate: {whole[1:]}, with plain torch {losses, lr}"
    if again[1:] != (whole[1][-len(again[1]) :], whole[2]):
        yield f"resumed after {at} of {count} batches: {again[1:]} instead of {whole[1:]}"


@pytest.mark.parametrize("number", NUMBERS)
def test_programs(number: int, tmp_path: Path) -> None:
    """Weights, losses and learning rate: equal to plain torch up to rounding, to the last bit after a resume."""
    from python_processes import run_python  # the script has no path to it

    program = Program(number)
    run_python(__file__, number, cwd=tmp_path, timeout=120, warnings="ignore")
    said = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank*.json"))]
    assert said == [[]] * program.devices, vars(program)


if __name__ == "__main__":
    chosen = Program(int(sys.argv[1]))
    wrong = list(differences(chosen, Path.cwd() / "saved"))
    Path(f"rank{os.environ.get('RANK', 0)}.json").write_text(json.dumps(wrong))
    print(vars(chosen), wrong)
