"""What the strategy's collectives give: ``python collectives.py FILE``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import loader, net
from torch_hal_horovod import HorovodStrategy

from torch_hal import Runtime
from torch_hal.errors import CoreError
from torch_hal.strategies import REDUCTIONS

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "complex64")

said: dict[str, Any] = {}
with Runtime(accelerator="cpu", strategy="horovod", devices=2) as runtime:
    runtime.launch()
    strategy = runtime.strategy
    assert isinstance(strategy, HorovodStrategy)
    rank = runtime.process_index
    for dtype in DTYPES:
        own = torch.tensor([[3 + rank, 2], [5, 7 - rank]]).to(getattr(torch, dtype))
        kept = own.clone()
        arguments = ("mean", "sum") if own.is_complex() else REDUCTIONS
        for reduction in arguments:
            said[f"{reduction} {dtype}"] = strategy.reduce(own, reduction)
        said[f"gather {dtype}"] = strategy.all_gather(own)
        assert torch.equal(own, kept)
    said["scalar"] = (strategy.reduce(torch.tensor(1.0 + rank)), strategy.all_gather(torch.tensor(rank)))
    said["empty"] = tuple(strategy.all_gather(torch.empty(0, 3)).shape)
    said["flags"] = strategy.all_gather(torch.tensor([rank == 0]))
    said["strided"] = strategy.reduce(torch.arange(6.0).reshape(2, 3).T, "sum")
    # Of one element, which torch calls contiguous whatever its stride.
    single = torch.tensor([3 + rank, 0])[::2]
    said["single"] = (
        *(strategy.all_gather(single), strategy.reduce(single, "sum"), strategy.broadcast(single, 1)),
        strategy.reduce(single.bfloat16(), "sum"),
    )
    strategy.broadcast_tensor(single, 1)
    transposed = torch.arange(6).reshape(2, 3).T * (rank + 1)
    strategy.broadcast_tensor(transposed, 1)
    said["overwritten"] = (single, transposed)
    # Objects of unlike types and sizes.
    said["objects"] = strategy.all_gather_object({"rank": rank} if rank else None)
    said["broadcast"] = [strategy.broadcast("x" * 1000 if rank else rank, source) for source in range(2)]
    try:
        strategy.all_gather(torch.zeros(rank + 1))
    except CoreError as error:
        said["unlike"] = str(error)
    strategy.barrier()
    said["gathered"] = runtime.gather(torch.tensor([rank, rank]))
    module = torch.nn.Sequential(net(rank), torch.nn.BatchNorm1d(3))
    module[1].get_buffer("running_mean").fill_(rank)
    prepared = runtime.prepare(module)
    said["buffers"] = runtime.gather(module[1].get_buffer("running_mean"))
    # An optimizer that has a state already is as rank 0's.
    other = net(0)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.1 * (rank + 1))
    other(torch.randn(4, 6)).sum().backward()
    for _ in range(rank + 1):
        optimizer.step()
    optimizer = runtime.prepare(optimizer)
    said["state"] = strategy.all_gather_object(
        [float(part["step"]) for part in optimizer.state_dict()["state"].values()]
    )
    said["rates"] = strategy.all_gather_object(optimizer.param_groups[0]["lr"])
    batches = runtime.prepare(loader())
    said["items"] = sum(len(batch[0]) for batch in batches)
    # Two nets that learn from each other: what one step leaves in the other is reduced, and not taken for more.
    one: Any
    two: Any
    one, two = runtime.prepare(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    said["second weight"] = two.weight.detach().clone()
    said["hidden"] = strategy.all_gather(one(torch.full((1, 2), 1.0 + rank)))
    for _ in range(2):
        with runtime.no_sync(two):
            runtime.backward(two(one(torch.full((1, 2), 1.0 + rank))).sum())
        said.setdefault("held", strategy.all_gather(two.weight.grad))
        runtime.backward(two(one(torch.full((1, 2), 1.0 + rank)).detach()).sum())
    said["one"] = strategy.all_gather(one.weight.grad)
    said["two"] = strategy.all_gather(two.weight.grad)
    convolution = torch.nn.Conv2d(4, 4, 3)
    convolution.weight.data = convolution.weight.data.to(memory_format=torch.channels_last)
    try:
        runtime.prepare(convolution)
    except CoreError as error:
        said["format"] = str(error)
    strategy.barrier()
for dense in (False, True):
    with Runtime(accelerator="cpu", strategy=HorovodStrategy(sparse_as_dense=dense)) as runtime:
        table = torch.nn.Embedding(6, 2, sparse=True)
        before = runtime.broadcast(table.weight.detach().clone())
        prepared, optimizer = runtime.prepare(table, torch.optim.SGD(table.parameters(), lr=1.0))
        for _ in range(2):
            runtime.backward(prepared(torch.tensor([rank, 5])).sum())
            optimizer.step()
            optimizer.zero_grad()
        said[f"sparse {dense}"] = before - table.weight.detach()
with Runtime(accelerator="cpu", strategy="horovod") as runtime:
    runtime.barrier()
    if rank == 0:
        torch.save(said, sys.argv[1])
    runtime.barrier()
