"""The truth: DistributedDataParallel as one writes it by hand. Started by torchrun, knows nothing of core."""

import os
import sys

import torch
import torch.distributed as dist
from problem import BATCH, EPOCHS, dataset, leave, model, optimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
module = model()
ddp = DistributedDataParallel(module)
stepper = optimizer(module)
data = dataset()
sampler: DistributedSampler[object] = DistributedSampler(data)
loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
steps = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        stepper.zero_grad()
        nn.functional.mse_loss(ddp(inputs), targets).backward()  # type: ignore[no-untyped-call]
        stepper.step()
        steps += 1
assert steps == 50
leave(module, dist.get_rank())
dist.barrier()
dist.destroy_process_group()
# torch 2.13 now and then aborts where a thread of gloo's is still about when the interpreter finalises.
sys.stdout.flush()
os._exit(0)
