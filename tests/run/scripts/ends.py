"""``ends.py HOW``: rank 1 ends in this way while the others wait for it in a collective."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from core import Runtime


def main() -> None:
    how = sys.argv[1]
    runtime = Runtime()
    runtime.launch()
    runtime.wait_for_everyone()
    rank = runtime.process_index
    os.write(1, f"{rank} of {runtime.num_processes} is {os.getpid()}\n".encode())
    if rank == 1 and how.isdecimal():
        os._exit(int(how))
    if rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleep":
        time.sleep(300)
    dist.all_reduce(torch.ones(3))


if __name__ == "__main__":
    main()
