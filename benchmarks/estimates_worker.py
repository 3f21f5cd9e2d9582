"""One process of a training whose bytes are counted by torch's own allocator, and the models that are trained.

    python estimates_worker.py PROCESSES OUT "MODEL STRATEGY PRECISION" ...

is started by ``estimates.py``, once for each process; they train one after another what is named, and process 0 writes
``OUT``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader

from core import Callback, Module, Trainer

STEPS = 3
MARK = "the last step"
CLASSES = 16


class Classifier(Module):
    """A network with a loss, an optimizer and data.

    Args:
        network: Gives ``CLASSES`` scores for each item.
        items: Of a batch.
        make: One input.
    """

    def __init__(self, network: nn.Module, items: int, make: Callable[[], Tensor]) -> None:
        super().__init__()
        self.network, self.items, self.make = network, items, make

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        return cross_entropy(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        """A batch for each step of each of up to four processes."""
        data = [(self.make(), index % CLASSES) for index in range(self.items)] * STEPS * 4
        return DataLoader(data, self.items)  # type: ignore[arg-type]


class Residual(nn.Module):
    """Two convolutions with batch norm, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, image: Tensor) -> Tensor:
        hidden = torch.relu(self.norms[0](self.first(image)))
        return torch.relu(image + self.norms[1](self.second(hidden)))


class MeanOverTime(nn.Module):
    """The mean over the second dimension; of an LSTM, of its outputs."""

    def forward(self, found: Any) -> Tensor:
        outputs: Tensor = found[0] if isinstance(found, tuple) else found
        return outputs.mean(1)


def perceptron() -> Classifier:
    """13 million parameters, few activations."""
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(12)]
    return Classifier(nn.Sequential(*layers, nn.Linear(1024, CLASSES)), 64, lambda: torch.rand(1024))


def convolutions() -> Classifier:
    """A residual network: 1.2 million parameters, many activations."""
    blocks = [Residual(128) for _ in range(4)]
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))
    network = nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), *blocks, *end)
    return Classifier(network, 32, lambda: torch.rand(3, 24, 24))


def transformer() -> Classifier:
    """Six layers, 11 million parameters."""
    layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    network = nn.Sequential(nn.Embedding(1000, 384), layers, MeanOverTime(), nn.Linear(384, CLASSES))
    return Classifier(network, 16, lambda: torch.randint(1000, (96,)))


def embeddings() -> Classifier:
    """A recommender: a table of 20 million parameters, of which a batch needs few."""
    network = nn.Sequential(nn.EmbeddingBag(160_000, 128), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    return Classifier(network, 256, lambda: torch.randint(160_000, (20,)))


def recurrent() -> Classifier:
    """An LSTM of two layers, 9 million parameters."""
    network = nn.Sequential(
        nn.Embedding(1000, 512), nn.LSTM(512, 1024, 2, batch_first=True), MeanOverTime(), nn.Linear(1024, CLASSES)
    )
    return Classifier(network, 16, lambda: torch.randint(1000, (32,)))


MODELS = {made.__name__: made for made in (perceptron, convolutions, transformer, embeddings, recurrent)}


class LastStep(Callback):
    """Marks the last step in the trace."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if batch_idx == STEPS - 1:
            self.mark = record_function(MARK)
            self.mark.__enter__()  # type: ignore[no-untyped-call]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == STEPS - 1:
            self.mark.__exit__(None, None, None)


def peak_in(trace: dict[str, Any]) -> int:
    """The most bytes that torch's allocator has given out at any time of the last step.

    By address: the profiler's own total does not sink when a thread of the process group frees what this one allocated.
    """
    events = trace["traceEvents"]
    mark = next(each for each in events if each.get("name") == MARK and each.get("ph") == "X")
    begin, end = mark["ts"], mark["ts"] + mark["dur"]
    living: dict[int, int] = {}
    now = peak = 0
    for event in sorted((each for each in events if each.get("name") == "[memory]"), key=lambda each: each["ts"]):
        if event["ts"] > begin:
            peak = max(peak, now)
        if event["ts"] > end:
            break
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        now -= living.pop(address, 0)
        if size > 0:
            living[address] = size
            now += size
    return peak


def train(model: str, strategy: str, precision: str, processes: int) -> int:
    """Train; returns the most bytes of the last step."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        trainer = Trainer(
            accelerator="cpu",
            devices=processes,
            strategy=strategy,
            precision=precision,
            max_steps=STEPS,
            callbacks=[LastStep()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        torch.manual_seed(0)
        trainer.fit(MODELS[model]())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return peak_in(json.loads(path.read_text()))


def main() -> None:
    """Train each, count, and let process 0 write what it has so far."""
    processes, out, *cells = sys.argv[1:]
    counted = {}
    for cell in cells:
        model, strategy, precision = cell.split()
        counted[cell] = train(model, strategy, precision, int(processes))
        if os.environ.get("RANK", "0") == "0":
            Path(out).write_text(json.dumps(counted))


if __name__ == "__main__":
    main()
