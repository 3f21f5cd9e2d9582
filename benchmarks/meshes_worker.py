"""One process of a mesh whose bytes are counted: ``meshes.py`` starts the first, which starts the others.

    python meshes_worker.py MESH PROCESSES OUT

``MESH`` is JSON of :class:`torch_hal_parallel.ModelParallelStrategy`'s arguments; process 0 writes ``OUT``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
from tasks import Block
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch_hal_parallel import ModelParallelStrategy, positions

from core import Runtime

__all__ = ["BATCH", "LENGTH", "MICROBATCHES", "WIDTH", "parameters_of"]

VOCABULARY, WIDTH, LAYERS = 64, 256, 8
BATCH, LENGTH, MICROBATCHES = 16, 128, 8
STEPS = 4
"""Of which bytes are counted in the last."""


class Embedding(nn.Module):
    """Of tokens and of their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(text) + self.places(positions(text.shape[1], text.device))
        return embedded


class Transformer(nn.Sequential):
    """A language model that every parallelism can divide."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        **{f"*.{name}": "colwise" for name in ("query", "key", "value", "up")},
        **{f"*.{name}": "rowwise" for name in ("out", "down")},
    }

    def __init__(self) -> None:
        layers = (Block(WIDTH) for _ in range(LAYERS))
        super().__init__(Embedding(), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))


def parameters_of() -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer().parameters())


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, -2), targets.flatten())


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return text[:, :-1], text[:, 1:]


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of this process's storages, each counted once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if isinstance(local, Tensor) and local.device.type != "meta":
            sizes[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(sizes.values())


def peak_of(recorded: profile) -> int:
    """The most bytes that torch's allocator had given out since recording began."""
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        held += int(event["args"]["Bytes"])
        most = max(most, held)
    return most


def train(runtime: Runtime) -> dict[str, Any]:
    """Some steps; the losses, and the bytes of each process in the last step."""
    strategy: Any = runtime.strategy
    torch.manual_seed(0)
    own = Transformer()
    model, optimizer = runtime.prepare(own, torch.optim.Adam(own.parameters(), lr=1e-3))
    losses, most = [], 0
    for step in range(STEPS):
        inputs, targets = (
            part.tensor_split(strategy.data_shards)[strategy.data_shard].clone() for part in batch_of(step)
        )
        # Gradients stay allocated, so that what a step allocates is activations, and what operations need for a moment.
        optimizer.zero_grad(set_to_none=False)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            if isinstance(strategy, ModelParallelStrategy):
                loss = strategy.forward_backward(model, inputs, targets, loss_of)
            else:
                loss = loss_of(model(inputs), targets)
                runtime.backward(loss)
        if step == STEPS - 1:
            most = peak_of(recorded)
        gradients = storage_bytes(parameter.grad for parameter in model.parameters())
        optimizer.step()
        losses.append(float(runtime.reduce(loss.detach(), "mean")))
    base = getattr(optimizer, "optimizer", optimizer)
    held = {
        "parameters": storage_bytes(model.parameters()),
        "gradients": gradients,
        "optimizer": storage_bytes(value for state in base.state.values() for value in state.values()),
        "activations": most,
    }
    return {"losses": losses, "held": strategy.all_gather_object(held)}


def main() -> None:
    mesh, processes, out = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    if "pipeline" in mesh:
        mesh["microbatches"] = MICROBATCHES
    strategy: Any = ModelParallelStrategy(**mesh) if mesh else "single_device"
    with Runtime(accelerator="cpu", devices=processes, strategy=strategy) as runtime:
        runtime.launch()
        found = train(runtime)
        if runtime.is_main_process:
            out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
