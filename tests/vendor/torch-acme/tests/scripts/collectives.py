"""One of two processes: every collective of ACCL against its formula, and training under two kinds of data parallelism.

Arguments: the type of device to simulate, the file to meet at, this process's number.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import acme_driver
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def _net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4), nn.Linear(4, 4))


def _train(net: nn.Module, device: torch.device) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(16, 12, generator=torch.Generator().manual_seed(7 + dist.get_rank()))
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(net(inputs.to(device)), inputs[:, :4].argmax(1).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_ddp(device: torch.device, gloo: Any) -> None:
    """The losses of the CPU's processes over gloo, bit for bit; rank 0's parameters are the start on both."""
    host = DistributedDataParallel(_net(dist.get_rank()), process_group=gloo)
    expected = _train(host, torch.device("cpu"))
    options: tuple[dict[str, Any], ...] = ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True})
    for option in options:
        assert _train(DistributedDataParallel(_net(dist.get_rank()).to(device), **option), device) == expected, option
    assert expected[-1] < expected[0]


def check_fsdp(device: torch.device) -> None:
    """The same for sharded parameters."""
    losses = []
    for where in (torch.device("cpu"), device):
        net = _net(0).to(where)
        fully_shard(net, mesh=init_device_mesh(where.type, (2,)))
        losses.append(_train(net, where))
    assert losses[0] == losses[1]


def check_collectives(device: torch.device, rank: int) -> None:
    """Each against its formula."""

    def own(*values: float) -> Tensor:
        return torch.tensor(values, device=device)

    value = own(rank + 1.0)
    work = dist.all_reduce(value, async_op=True)
    assert work is not None
    work.wait()
    assert value.tolist() == [3.0]
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    assert value.tolist() == [3.0]
    assert value.device == device
    reduced = own(rank + 1.0)
    dist.reduce(reduced, dst=1)
    assert rank == 0 or reduced.tolist() == [3.0]
    gathered = [own(-1.0) for _ in range(2)]
    dist.all_gather(gathered, own(float(rank)))
    assert [tensor.item() for tensor in gathered] == [0.0, 1.0]
    at_0 = [own(-1.0) for _ in range(2)] if rank == 0 else None
    dist.gather(own(float(rank)), at_0, dst=0)
    assert at_0 is None or [tensor.item() for tensor in at_0] == [0.0, 1.0]
    part = own(-1.0)
    dist.scatter(part, [own(5.0), own(6.0)] if rank == 1 else None, src=1)
    assert part.tolist() == [5.0 + rank]
    dist.reduce_scatter(part, [own(1.0), own(2.0)])
    assert part.tolist() == [2.0 * (rank + 1)]
    swapped = own(-1.0, -1.0)
    dist.all_to_all_single(swapped, own(10.0 * rank, 10.0 * rank + 1))
    assert swapped.tolist() == [float(rank), 10.0 + rank]
    half = torch.full((2,), float(rank), device=device, dtype=torch.bfloat16)
    dist.broadcast(half, src=1)
    assert half.tolist() == [1.0, 1.0]
    received = own(-1.0)
    operations = [dist.P2POp(dist.irecv, received, 1 - rank), dist.P2POp(dist.isend, own(float(rank)), 1 - rank)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    assert received.tolist() == [1.0 - rank]
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()


def main(device_type: str, meeting: str, rank: int) -> None:
    """Join the other process and run every check."""
    backend = "accl" if device_type == "acme" else "hccl"
    if device_type != "acme":
        acme_driver.simulate(device_type, 2, collectives=backend)
    device = torch.device(device_type, rank)
    torch.get_device_module(device).set_device(rank)
    dist.init_process_group(
        f"cpu:gloo,{device_type}:{backend}",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    check_collectives(device, rank)
    check_ddp(device, dist.new_group(backend="gloo"))
    if device_type != "xla":  # for which torch makes no mesh without torch_xla
        check_fsdp(device)
    dist.barrier()
    print(f"rank {rank} done", flush=True)
    os._exit(0)  # gloo's threads may outlive the interpreter


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
