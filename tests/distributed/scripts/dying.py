"""Three processes that reduce tensors in a loop, one of which fails; launcher, how and which are the arguments."""

import os
import signal
import sys
import time

import torch

from core import Runtime
from core.strategies import DDPStrategy


def die(how: str) -> None:
    print(f"dying at {time.monotonic()}", flush=True)
    if how == "exception":
        raise ValueError("planted")
    if how == "memory":
        raise MemoryError("planted: no memory left")
    if how == "exit":
        sys.exit(3)
    if how == "abort":
        os.abort()
    os.kill(os.getpid(), signal.SIGKILL)


def work(runtime: Runtime, how: str, victim: int) -> None:
    for step in range(10**9):
        if step == 20 and runtime.process_index == victim:
            die(how)
        runtime.strategy.reduce(torch.ones(4), "sum")


if __name__ == "__main__":
    launcher, how, victim = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if launcher == "torchrun":
        runtime = Runtime(accelerator="cpu", strategy="ddp", devices=3)
    else:
        runtime = Runtime(accelerator="cpu", strategy=DDPStrategy(start_method=launcher), devices=3)
    runtime.launch(work, how, victim)
