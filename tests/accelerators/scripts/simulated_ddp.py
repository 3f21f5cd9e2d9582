"""One of two processes: trains under DistributedDataParallel on a simulated device and, for comparison, on the CPU."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import simx
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from core.accelerators import TorchDeviceAccelerator

_STEPS = 20


def _net() -> nn.Module:
    torch.manual_seed(dist.get_rank())  # different on each rank, until rank 0's parameters are sent to all
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4), nn.Linear(4, 4))


def _train(device: torch.device, group: Any, **options: Any) -> tuple[list[float], list[torch.Tensor]]:
    net = DistributedDataParallel(_net().to(device), process_group=group, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(7 + dist.get_rank())
    losses = []
    for step in range(_STEPS):
        inputs = torch.randn(16, 12, generator=draw)
        loss = nn.functional.cross_entropy(net(inputs.to(device)), inputs[:, :4].argmax(1).to(device))
        optimizer.zero_grad()
        if step % 4:
            loss.backward()
        else:
            with net.no_sync():
                (loss / 2).backward()
            (nn.functional.cross_entropy(net(inputs.to(device)), inputs[:, :4].argmax(1).to(device)) / 2).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [value.cpu() for value in net.module.state_dict().values()]


def _check_training(device: torch.device) -> None:
    gloo = dist.new_group(backend="gloo")
    expected = _train(torch.device("cpu"), gloo)
    for options in ({}, {"device_ids": [device.index]}, {"gradient_as_bucket_view": True}):
        losses, state = _train(device, None, **options)
        assert losses == expected[0], options
        assert all(map(torch.equal, state, expected[1])), options
    losses, _ = _train(device, None, find_unused_parameters=True)
    assert losses == expected[0]
    assert losses[-1] < losses[0]


def _check_collectives(device: torch.device, rank: int) -> None:
    value = torch.tensor([rank + 1.0], device=device)
    dist.all_reduce(value)
    assert value.tolist() == [3.0]
    gathered = [torch.empty(1, device=device) for _ in range(2)]
    dist.all_gather(gathered, torch.tensor([float(rank)], device=device))
    assert [tensor.item() for tensor in gathered] == [0.0, 1.0]
    whole = torch.empty(2, device=device)
    dist.all_gather_into_tensor(whole, torch.tensor([float(rank)], device=device))
    assert whole.tolist() == [0.0, 1.0]
    part = torch.empty(1, device=device)
    dist.reduce_scatter_tensor(part, torch.tensor([1.0, 2.0], device=device))
    assert part.tolist() == [2.0 * (rank + 1)]
    sent = torch.full((2,), float(rank), device=device, dtype=torch.bfloat16)
    dist.broadcast(sent, src=1)
    assert sent.tolist() == [1.0, 1.0]
    work = dist.all_reduce(value, op=dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    work.wait()
    assert value.tolist() == [3.0]
    received = torch.empty(1, device=device)
    operations = [
        dist.P2POp(dist.irecv, received, 1 - rank),
        dist.P2POp(dist.isend, torch.tensor([float(rank)], device=device), 1 - rank),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    assert received.tolist() == [1.0 - rank]
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    on_host = torch.tensor([rank])
    dist.all_reduce(on_host)
    assert on_host.tolist() == [1]
    dist.barrier()


def main(rank: int, rendezvous: str) -> None:
    """Join the other process and run every check."""
    accelerator = TorchDeviceAccelerator(simx.DEVICE_TYPE)
    device = accelerator.get_parallel_devices([0, 1])[rank]
    accelerator.setup_device(device)
    backend = accelerator.process_group_backend(device)
    store = f"file://{rendezvous}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    assert dist.get_backend() == "simccl"
    _check_collectives(device, rank)
    _check_training(device)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done", flush=True)
    os._exit(0)  # gloo's threads may outlive the interpreter


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
