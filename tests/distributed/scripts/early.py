"""Processes of which the first returns early; the arguments: their number, and what the others do then."""

import sys
import time

import torch
from torch import nn

from core import Runtime


def main() -> None:
    runtime = Runtime(accelerator="cpu", strategy="ddp", devices=int(sys.argv[1]))
    module = nn.Linear(4, 1)
    module, optimizer = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    if sys.argv[2] == "waits in forward":  # of the second step, before which DistributedDataParallel makes its buckets
        runtime.backward(module(torch.ones(2, 4)).mean())
    print(f"dying at {time.monotonic()}", flush=True)
    if runtime.process_index == 0:
        return
    if sys.argv[2] == "alone":
        time.sleep(15)
    else:
        runtime.backward(module(torch.ones(2, 4)).mean())
        optimizer.step()
    print(f"rank {runtime.process_index} is through")


if __name__ == "__main__":
    main()
