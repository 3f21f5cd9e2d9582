"""A run of two processes, then one of another size in the same script: refused."""

from core import Runtime

first = Runtime(accelerator="cpu", strategy="ddp", devices=2)
first.barrier()
first.teardown()
Runtime(accelerator="cpu", devices=1)
