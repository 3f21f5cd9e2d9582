"""One process of a run whose bytes are counted: in its memory, and on the loopback interface of its network namespace.

    python costs_worker.py ROW PROCESSES OUT

is started by ``costs.py``, once for each process of the run; process 0 writes ``OUT``.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from costs_rows import ITEMS, LENGTH, ROWS, VOCABULARY, Row, build
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from core import Runtime

WARM_UP, COUNTED = 3, 4
"""Steps before bytes are counted, and while they are."""


STEPPED = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
"""Of DeepSpeed's optimizer: what the user's own steps."""
STEPS_WITH = (
    "averaged_gradients",
    "all_grad_tensors",
    "grad_partitions_flat_buffer",
    "accumulated_grads_in_cpu",
    "param_buffer_of_bit16_for_cpu_offload_groups",
)
"""Of DeepSpeed's optimizer: gradients, and parameters on their way back from the host."""


class Run:
    """A model in training under one strategy.

    Args:
        row: Which strategy.
        runtime: Of the run, live.
    """

    def __init__(self, row: Row, runtime: Runtime) -> None:
        self.runtime = runtime
        torch.manual_seed(0)
        self.own = build()
        self.model, self.optimizer = runtime.prepare(self.own, _optimizer(row, self.own))
        generator = torch.Generator().manual_seed(runtime.strategy.data_shard)
        self.text = torch.randint(VOCABULARY, (ITEMS, LENGTH + 1), generator=generator)

    def backward(self) -> None:
        scores = self.model(self.text[:, :-1])
        self.runtime.backward(cross_entropy(scores.flatten(0, 1), self.text[:, 1:].flatten()))

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bytes_sent(self) -> float:
        """Bytes that a process sends a step, on average over processes and steps."""
        for _ in range(WARM_UP):
            self.step()
        before = self._sent_by_now()
        for _ in range(COUNTED):
            self.step()
        return (self._sent_by_now() - before) / COUNTED / self.runtime.num_processes

    def _sent_by_now(self) -> int:
        self.runtime.barrier()
        sent = _loopback_bytes()
        self.runtime.barrier()
        return sent

    def bytes_held(self) -> dict[str, int]:
        """Bytes in this process's memory between a backward pass and its step, by what they are."""
        self.backward()
        gc.collect()
        seen: set[int] = set()
        held = {kind: _storage_bytes(tensors, seen) for kind, tensors in self._tensors_by_kind().items()}
        everything = [found for found in gc.get_objects() if issubclass(type(found), Tensor)]
        held["extra"] += _storage_bytes(everything, seen) + _ddp_buckets(self.runtime.strategy_module(self.model))
        self.optimizer.step()
        return held

    def _tensors_by_kind(self) -> dict[str, list[Any]]:
        """``held`` on the device or on the ``host`` by an engine that tells the two apart, and what is ``extra``."""
        own = list(self.own.parameters())
        base = getattr(self.optimizer, "optimizer", self.optimizer)
        base = getattr(base, "optim", base)  # a divided optimizer's share
        state = _tensors_in(list(base.state.values()))
        kinds: dict[str, list[Any]] = {"host": [], "held": [*own, *(parameter.grad for parameter in own)], "extra": []}
        engine: Any = getattr(self.runtime.strategy, "engine", None)
        if engine is None or not engine.zero_optimization():
            kinds["held"] += state
            return kinds
        zero = engine.optimizer
        is_offloaded = getattr(zero, "cpu_offload", False) or getattr(zero, "offload_optimizer", False)
        stepped = [part for name in STEPPED for part in _tensors_in(getattr(zero, name, None))]
        kinds["host" if is_offloaded else "held"] += [
            *state,
            *stepped,
            *(part.grad for part in stepped),
            *(part for name in STEPS_WITH for part in _tensors_in(getattr(zero, name, None))),
        ]
        divided = [getattr(parameter, "ds_tensor", None) for parameter in own]
        kinds["host" if getattr(zero, "offload_param", False) else "held"] += divided
        kinds["held"] += [getattr(parameter, "grad_accum", None) for parameter in own]
        kinds["extra"] += [bucket.buffer for bucket in zero.ipg_buckets.values()]
        return kinds


def _optimizer(row: Row, model: nn.Module) -> torch.optim.Optimizer:
    if row.qadam:
        made: torch.optim.Optimizer = import_module("torch_hal_bagua").QAdamOptimizer(
            model.parameters(), warmup_steps=1
        )
        return made
    return torch.optim.Adam(model.parameters())


def _tensors_in(found: Any) -> list[Tensor]:
    """All tensors in lists and mappings, however deep."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, dict):
        found = found.values()
    elif not isinstance(found, list | tuple):
        return []
    return [tensor for part in found for tensor in _tensors_in(part)]


def _storage_bytes(tensors: Iterable[Any], seen: set[int]) -> int:
    """Bytes of the storages of ``tensors`` that are not in ``seen``, where they are from now on."""
    total = 0
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if not isinstance(local, Tensor) or local.device.type == "meta" or local.layout is not torch.strided:
            continue
        storage = local.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _ddp_buckets(model: nn.Module) -> int:
    """Bytes of DistributedDataParallel's buckets, as long as no Python object stands for them."""
    if not isinstance(model, DistributedDataParallel) or model.gradient_as_bucket_view:
        return 0
    said: dict[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    if said.get("comm_hook"):
        return 0
    sizes = said.get("rebuilt_bucket_sizes") or said["bucket_sizes"]
    return sum(int(size) for size in str(sizes).split(","))


def _loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        interface, _, numbers = line.partition(":")
        if interface.strip() == "lo":
            return int(numbers.split()[8])
    raise SystemExit("no loopback interface")


def main() -> None:
    row, processes, out = ROWS[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3])
    machines = row.machines_of(processes)
    with Runtime(
        accelerator="cpu",
        devices=processes // machines,
        num_nodes=machines,
        strategy=row.make(),
        precision="32-true",
    ) as runtime:
        runtime.launch()
        run = Run(row, runtime)
        sent = run.bytes_sent()
        held = runtime.strategy.all_gather_object(run.bytes_held())
        if runtime.is_main_process:
            most = {kind: max(each[kind] for each in held) for kind in held[0]}
            out.write_text(json.dumps({"sent": sent, **most}))


if __name__ == "__main__":
    main()
