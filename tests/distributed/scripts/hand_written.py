"""The truth: DistributedDataParallel as one writes it by hand. Started by torchrun, knows nothing of core."""

import os
import sys

import torch
import torch.distributed as dist
from problem import BATCH, EPOCHS, dataset, leave, model, optimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
torch.manual_seed(0)
module = model()
ddp = DistributedDataParallel(module)
stepper = optimizer(module)
data = dataset()
# Both processes' batches as one, in one order, of which each takes its part.
joined = DataLoader(data, BATCH * 2, shuffle=True, generator=torch.Generator().manual_seed(1))
rank = dist.get_rank()
steps = 0
for _ in range(EPOCHS):
    for batch in joined:
        inputs, targets = (part[rank * BATCH : (rank + 1) * BATCH] for part in batch)
        stepper.zero_grad()
        nn.functional.mse_loss(ddp(inputs), targets).backward()  # type: ignore[no-untyped-call]
        stepper.step()
        steps += 1
assert steps == 50
leave(module, rank)
dist.barrier()
dist.destroy_process_group()
# torch 2.13 now and then aborts where a thread of gloo's is still about when the interpreter finalises.
sys.stdout.flush()
os._exit(0)
