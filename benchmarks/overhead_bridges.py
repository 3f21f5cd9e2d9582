"""Microseconds per step of Lightning, Fabric, Accelerate and Ray Train, with and without torch-hal's, in one run.

``--check`` fails if a plugin adds more than 10 µs a step, ``--write`` writes the table to README.md;
``nox -s overhead_bridges``. One process on the CPU.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from pages import versions, write_between
from torch import Tensor, nn

ROUNDS, STEPS, WARM_UP = 9, 300, 50
BAR = 10.0

Loop = Callable[[], float]
"""Trains, and returns the median microseconds of a step."""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    """One for each step; there is no loader, so that its time does not hide anything."""
    return [(torch.randn(8, 8), torch.randint(0, 3, (8,)))] * (STEPS + WARM_UP)


class Batches:
    """The same batches as a loader: Lightning treats each element of a list as a separate loader."""

    def __len__(self) -> int:
        return STEPS + WARM_UP

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(batches())


def median(moments: list[float]) -> float:
    steps = [after - before for before, after in zip(moments[WARM_UP:], moments[WARM_UP + 1 :], strict=False)]
    return statistics.median(steps) * 1e6


def lightning(kind: Any) -> float:
    from lightning.pytorch import LightningModule

    return fit(kind, LightningModule, devices=1)


def fit(trainer: Any, module: Any, **arguments: Any) -> float:
    """A fit of ``trainer``, a class, with a module derived from the class ``module``."""

    class Classifier(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.moments = network(), [0.0]

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.moments.append(time.perf_counter())
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> Any:
            return Batches()

    classifier = Classifier()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer(accelerator="cpu", max_epochs=1, **arguments, **dict.fromkeys(off, False)).fit(classifier)
    return median(classifier.moments[1:])


def fabric(kind: Any) -> float:
    made = kind(accelerator="cpu", devices=1)
    net = network()
    model, optimizer = made.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return loop(model, optimizer, made.backward)


def accelerate(kind: Any) -> float:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    made = kind(cpu=True)
    net = network()
    model, optimizer = made.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    taken = loop(model, optimizer, made.backward)
    with contextlib.suppress(ImportError):
        from torch_hal_accelerate import deactivate

        deactivate()
    return taken


def ray_alone() -> float:
    """A loop in a worker of Ray Train, as its documentation shows it."""
    from ray.train.torch import prepare_model

    net = prepare_model(network())
    return loop(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.Tensor.backward)


def ray_runtime() -> float:
    from core import Runtime

    with Runtime(accelerator="cpu", num_nodes="auto") as runtime:
        net = network()
        model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        return loop(model, optimizer, runtime.backward)


def ray_trainer() -> float:
    from core import Module, Trainer

    return fit(Trainer, Module, num_nodes="auto")


def in_ray_train(config: dict[str, Any]) -> None:
    """What the worker of Ray Train does: each in turn."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    turns = [(ray_alone(), ray_runtime(), ray_trainer()) for _ in range(ROUNDS)]
    Path(config["out"]).write_text(json.dumps(turns))


def ray_train() -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """The turns of the Runtime and of the Trainer, each next to Ray Train alone in the same worker."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "turns.json")
            TorchTrainer(
                in_ray_train,
                train_loop_config={"out": str(out)},
                scaling_config=ScalingConfig(num_workers=1),
                run_config=RunConfig(storage_path=folder, name="run"),
            ).fit()
            turns = json.loads(out.read_text())
    finally:
        ray.shutdown()
    yield "Ray Train, Runtime", [(alone, runtime) for alone, runtime, _ in turns]
    yield "Ray Train, Trainer", [(alone, trainer) for alone, _, trainer in turns]


def bridges() -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """The turns of each front end: alone, and with its plugin."""
    import accelerate as hugging
    import lightning as peer
    import torch_hal_accelerate
    import torch_hal_lightning

    pairs: dict[str, tuple[Callable[[Any], float], Any, Any]] = {
        "Lightning's Trainer": (lightning, peer.Trainer, torch_hal_lightning.Trainer),
        "Fabric": (fabric, peer.Fabric, torch_hal_lightning.Fabric),
        "Accelerate": (accelerate, hugging.Accelerator, torch_hal_accelerate.Accelerator),
    }
    for name, (train, native, bridged) in pairs.items():
        yield name, [(train(native), train(bridged)) for _ in range(ROUNDS)]
    yield from ray_train()


def loop(model: Any, optimizer: Any, backward: Callable[[Tensor], Any]) -> float:
    moments = []
    for inputs, targets in batches():
        moments.append(time.perf_counter())
        optimizer.zero_grad()
        backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
    return median(moments)


def main() -> int:
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    failed, lines = False, ["| | a step, µs | added by the plugin | limit |", "|---|---:|---:|---:|"]
    for name, taken in bridges():
        alone = statistics.median(one for one, _ in taken)
        added = statistics.median(other - one for one, other in taken)
        failed |= added > BAR
        lines.append(f"| {name} | {alone:.0f} | {added:+.1f} | {BAR:.0f} |")
        print(lines[-1], flush=True)
    if "--write" in sys.argv:
        about = f"{versions('torch', 'lightning', 'accelerate', 'ray')}, {date.today().isoformat()}"
        lines.insert(0, f"Measured on {os.cpu_count()} cores ({about}):\n")
        write_between(Path(__file__).with_name("README.md"), "bridges", "\n".join(lines))
    return int(failed and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
