"""An own loop without ``launch`` or ``teardown``, in which one process fails; how is the argument."""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Runtime

how, victim = sys.argv[1], int(sys.argv[2])
runtime = Runtime(accelerator="cpu", strategy="ddp", devices=2)
module = nn.Linear(4, 1)
module, optimizer, loader = runtime.prepare(
    module, torch.optim.SGD(module.parameters(), lr=0.1), DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=2)
)
for step, (batch,) in enumerate(loader):
    if step == 5 and runtime.process_index == victim:
        if how == "raise":
            raise ValueError("planted")
        if how == "exit":
            sys.exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    runtime.backward(module(batch).mean())
    optimizer.step()
print(f"rank {runtime.process_index} is through")
