"""Measures what ``Trainer(compile=True)`` costs and saves: a small transformer, plain and compiled.

    python benchmarks/compiling.py
    python benchmarks/compiling.py --devices 1 --steps 30
    python benchmarks/compiling.py --write    # writes the table to docs/performance.md

Each run is a new process with an empty cache of compiled code, and another one that finds the first one's code there.
Processes have one thread each. All times are processor time, which other work on the machine changes little: of the
median step in process 0; and of all processes without their steps, beyond the plain run's, for compiling.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from pages import write_between
from tasks import CONTEXT, Transformer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from core import Callback, Module, Trainer

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BATCH, VOCABULARY, LAYERS = 8, 256, 4


class Language(Module):
    """1.0 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Transformer(VOCABULARY, 128, LAYERS)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return cross_entropy(self.network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Clock(Callback):
    """Notes when each step begins, and when the last one has ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        self.times.append(time.process_time())

    def on_train_end(self, trainer: Trainer, module: Module) -> None:
        self.times.append(time.process_time())


def train(devices: int, is_compiled: bool, steps: int) -> None:
    """One run, which prints the seconds of its median step."""
    torch.manual_seed(0)
    clock = Clock()
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        max_epochs=1,
        compile=is_compiled,
        callbacks=clock,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    text = torch.randint(VOCABULARY, (BATCH * devices * steps, CONTEXT + 1))
    trainer.fit(Language(), DataLoader(text, batch_size=BATCH))  # type: ignore[arg-type]
    if trainer.is_global_zero:
        taken = [end - begin for begin, end in zip(clock.times, clock.times[1:], strict=False)]
        print("seconds", statistics.median(taken[2:]), flush=True)


def measured(devices: int, is_compiled: bool, steps: int, cache: str) -> tuple[float, float]:
    """Processor seconds of a run without its steps, of all its processes, and of a step of process 0."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", str(int(is_compiled))]
    command += ["--devices", str(devices), "--steps", str(steps)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    step = float(next(line for line in said.splitlines() if line.startswith("seconds")).split()[1])
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return whole - devices * steps * step, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2], metavar="N", help="processes (default: 1 2)")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="of each run (default: 40)")
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        train(options.devices[0], bool(options.one), options.steps)
        return
    rows: dict[str, list[str]] = {name: [] for name in ("plain", "compiled", "compiled, code in the cache")}
    for devices in options.devices:
        with tempfile.TemporaryDirectory() as cache:
            plain_rest, plain = measured(devices, False, options.steps, cache)
            rows["plain"] += ["", f"{plain * 1e3:.0f} ms"]
            for name in list(rows)[1:]:
                rest, step = measured(devices, True, options.steps, cache)
                rows[name] += [f"{rest - plain_rest:.0f} s", f"{step * 1e3:.0f} ms"]
    heads = [f"compiling, {n} process{'es' * (n > 1)} | a step" for n in options.devices]
    lines = [
        f"Processor time for a transformer of {LAYERS} layers, {BATCH} texts of {CONTEXT} characters a process, "
        f"{options.steps} steps ({os.cpu_count()} cores, torch {torch.__version__}, {date.today().isoformat()}):",
        "",
        f"| | {' | '.join(heads)} |",
        "|---|" + "---:|" * (2 * len(heads)),
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()),
    ]
    print("\n".join(lines))
    if options.write:
        write_between(PAGE, "compiling", "\n".join(lines))


if __name__ == "__main__":
    main()
