"""Three processes, of which one does not come to a collective: launcher, and how it stays away, are the arguments."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
from torch.distributed import distributed_c10d

from core import Runtime
from core.strategies import DDPStrategy


def lingers() -> None:
    time.sleep(1000)


def work(runtime: Runtime, how: str) -> None:
    # Joining may take longer on a busy machine.
    distributed_c10d._set_pg_timeout(timedelta(seconds=8), distributed_c10d.GroupMember.WORLD)
    for step in range(10**9):
        if step == 20 and runtime.process_index == 1:
            print(f"dying at {time.monotonic()}", flush=True)
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            lingers()
        runtime.strategy.reduce(torch.ones(4), "sum")


if __name__ == "__main__":
    launcher, how = sys.argv[1], sys.argv[2]
    runtime = Runtime(accelerator="cpu", strategy=DDPStrategy(start_method=launcher), devices=3)
    runtime.launch(work, how)
