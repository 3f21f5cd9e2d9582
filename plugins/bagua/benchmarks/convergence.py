"""The result of training with each algorithm: scikit-learn's digits, the same batches and steps for all.

python benchmarks/convergence.py --processes 4 --markdown table.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch_hal_bagua import BaguaStrategy, QAdamOptimizer

from torch_hal import Runtime, Strategy
from torch_hal.strategies import DDPStrategy

RUNS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "gradient_allreduce": {"algorithm": "gradient_allreduce"},
    "bytegrad": {"algorithm": "bytegrad", "hierarchical": False},
    "decentralized (all)": {"algorithm": "decentralized", "hierarchical": False},
    "decentralized (shift_one)": {
        "algorithm": "decentralized",
        "hierarchical": False,
        "peer_selection_mode": "shift_one",
    },
    "low_precision_decentralized": {"algorithm": "low_precision_decentralized", "hierarchical": False},
    "async": {"algorithm": "async", "sync_interval_ms": 5, "warmup_steps": 20},
    "qadam, eps=1e-8": {"algorithm": "qadam", "hierarchical": False},
    "qadam, eps=1e-3": {"algorithm": "qadam", "hierarchical": False},
}
BATCH = 32


def train(name: str, processes: int, epochs: int, lr: float) -> dict[str, float]:
    """Loss and accuracy after training with one strategy, means over the processes' own weights."""
    options = RUNS[name]
    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    targets = torch.tensor(digits.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train_set, test_set = order[:1440], order[1440:]
    strategy: Strategy = BaguaStrategy(**options) if options else DDPStrategy()
    with Runtime(accelerator="cpu", devices=processes, strategy=strategy) as runtime:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        if options.get("algorithm") == "qadam":
            optimizer = QAdamOptimizer(net.parameters(), lr=lr / 50, warmup_steps=100, eps=float(name.split("=")[1]))
        model, optimizer = runtime.prepare(net, optimizer)
        generator = torch.Generator().manual_seed(1)
        own = slice(runtime.process_index, None, processes)
        for _ in range(epochs):
            shuffled = train_set[torch.randperm(len(train_set), generator=generator)][own]
            for batch in torch.split(shuffled, BATCH // processes):
                loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
                runtime.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        runtime.barrier()
        with torch.no_grad():
            outputs = model(inputs[train_set])
            loss = nn.functional.cross_entropy(outputs, targets[train_set])
            hits = (model(inputs[test_set]).argmax(1) == targets[test_set]).float().mean()
        spread = [runtime.reduce(p.detach(), "max") - runtime.reduce(p.detach(), "min") for p in net.parameters()]
        return {
            "loss": runtime.reduce(loss, "mean").item(),
            "accuracy": runtime.reduce(hits, "mean").item(),
            "spread": max(float(part.max()) for part in spread),
        }


def main() -> None:
    """Train with every run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1, 0.02], help="of SGD; a 50th of it of qadam")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    lines = [
        f"{arguments.processes} processes, {arguments.epochs} epochs of digits, {BATCH} examples a step in all:",
        "",
        "| algorithm | lr | training loss | test accuracy | greatest difference of a weight between processes |",
        "|---|---:|---:|---:|---:|",
    ]
    for lr in arguments.lr:
        for name in RUNS:
            row = train(name, arguments.processes, arguments.epochs, lr)
            lines.append(f"| {name} | {lr} | {row['loss']:.4f} | {row['accuracy']:.4f} | {row['spread']:.1e} |")
    text = "\n".join(lines) + "\n"
    if Runtime(accelerator="cpu", devices=arguments.processes, strategy="ddp").is_main_process:
        print(text)  # noqa: T201  a script
        if arguments.markdown:
            arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
