"""Train while processes come and go, under Horovod's elastic driver.

``horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh python elastic.py``
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Runtime

logger = logging.getLogger("elastic")


def main() -> None:
    """Everything that every process does."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds between epochs, to have time to end a process"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    items = TensorDataset(inputs, inputs[:, :2].argmax(1))

    # Starts Horovod. Under the elastic driver nothing is broadcast here: a process that joins later would wait for it.
    runtime = Runtime(strategy="horovod")
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = runtime.prepare(model, optimizer)
    state = hvd.elastic.TorchState(model=runtime.unwrap_model(model), optimizer=optimizer, epoch=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        # Each time processes have joined or left: the items are divided among the current ones.
        loader = runtime.prepare(DataLoader(items, batch_size=16))
        while state.epoch < arguments.epochs:
            for batch, targets in loader:
                loss = nn.functional.cross_entropy(model(batch), targets)
                runtime.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            state.epoch += 1
            mean = runtime.reduce(loss.detach(), "mean").item()
            if runtime.is_main_process:
                logger.info("epoch %d: loss %.4f on %d process(es)", state.epoch, mean, runtime.num_processes)
            time.sleep(arguments.pause)
            state.commit()

    train(state)
    runtime.teardown()


if __name__ == "__main__":
    main()
