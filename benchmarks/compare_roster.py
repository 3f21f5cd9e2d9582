"""The strategies that `compare.py` trains, how their processes start, and the expected results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from tasks import Task

__all__ = ["ALLOWED", "DDP", "PLAIN", "PLAIN_ADAM", "ROSTER", "TO_DDP", "Entry"]

PLAIN, PLAIN_ADAM, DDP = "plain loop", "plain loop, Adam", "ddp"

ALLOWED = {"exact": 1e-4, "lossy": 0.01, "async": 0.05}
"""How far above the plain loop's final loss training may end, as a share of what the plain loop's loss has fallen by.

``exact`` has the same steps but for rounding, and may not end lower either. ``lossy`` rounds what is sent to 8 bits, or
averages weights a step late. ``async`` computes each gradient from half of the items, and averages weights whenever its
thread gets to it: what is asked of it is that nearly all of the fall is there.
"""

TO_DDP = 1e-5
"""How far losses, and parameters, may be from DDP's where a strategy promises to be DDP in float32."""


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        name: As the table calls it.
        strategy: Its registered name; or, with options, ``"module:Class"``.
        options: What its class is given.
        bar: A key of :data:`ALLOWED`.
        is_ddp: Whether it promises DDP's losses and parameters: ``"bits"``, or ``"rounding"`` for :data:`TO_DDP`.
        equal_ranks: Whether all processes must end with the same bits.
        resumed: What a resumed run must be to an uninterrupted one: ``"bits"``; nothing is asked of ``"like"``.
        machines: How many machines its two processes say they are on.
        horovodrun: Whether Horovod starts them.
        adam: Whether the optimizer is Adam: Bagua's own form of it, under ``qadam``.
        needs: What a machine may lack; then the strategy must be refused by name.
    """

    name: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    bar: str = "exact"
    is_ddp: str | None = None
    equal_ranks: bool = True
    resumed: str = "bits"
    machines: int = 1
    horovodrun: bool = False
    adam: bool = False
    needs: str | None = None

    def make(self) -> Any:
        module, _, name = self.strategy.partition(":")
        return getattr(import_module(module), name)(**self.options) if name else self.strategy

    def task(self, task: Task) -> Task:
        return replace(task, optimizer=_adam(task, self.name != PLAIN_ADAM)) if self.adam else task


def _adam(task: Task, quantized: bool) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    # Of the smallest second moments rounding to 8 bits would make large steps: hence eps, for both.
    options: dict[str, Any] = {"lr": 2e-3, "eps": 1e-3}
    if not quantized:
        return partial(torch.optim.Adam, **options)
    return partial(import_module("torch_hal_bagua").QAdamOptimizer, warmup_steps=task.steps // 4, **options)


def _bagua(algorithm: str, **options: Any) -> Entry:
    """An algorithm among the processes of one machine, where the default would have nothing left for it to do."""
    taken = {name: options.pop(name) for name in list(options) if name not in Entry.__dataclass_fields__}
    given = {"algorithm": algorithm, **({} if algorithm == "async" else {"hierarchical": False}), **taken}
    name = "_".join(["bagua", algorithm]) + "".join(f", {value}" for value in taken.values() if isinstance(value, str))
    return Entry(name, "torch_hal_bagua:BaguaStrategy", given, **{"bar": "lossy", **options})


def _deepspeed(name: str, **options: Any) -> Entry:
    """A stage that divides every parameter: by default, small ones stay whole, and these models have no others."""
    if options["stage"] == 3:
        options["config"] = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    return Entry(name, "torch_hal_deepspeed:DeepSpeedStrategy", options, is_ddp="rounding")


_BOTH = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
_NVME = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}

ROSTER: tuple[Entry, ...] = (
    Entry(PLAIN, ""),
    Entry(PLAIN_ADAM, "", adam=True),
    Entry(DDP, "ddp"),
    Entry("ddp_spawn", "ddp_spawn", is_ddp="bits"),
    Entry("ddp_fork", "ddp_fork", is_ddp="bits"),
    Entry("ddp_sharded", "ddp_sharded", is_ddp="bits"),
    Entry("fsdp", "fsdp", is_ddp="rounding"),
    Entry("fsdp_cpu_offload", "fsdp_cpu_offload", is_ddp="rounding"),
    Entry("fsdp_hybrid", "fsdp_hybrid", is_ddp="rounding", machines=2),
    Entry("fsdp_tensor_parallel", "fsdp_tensor_parallel", is_ddp="rounding"),
    _deepspeed("deepspeed, stage=0", stage=0),
    _deepspeed("deepspeed_stage_1", stage=1),
    _deepspeed("deepspeed_stage_2", stage=2),
    _deepspeed("deepspeed_stage_3", stage=3),
    _deepspeed("deepspeed_stage_1_offload", stage=1, offload_optimizer="cpu"),
    _deepspeed("deepspeed_stage_2_offload", stage=2, offload_optimizer="cpu"),
    _deepspeed("deepspeed_stage_3_offload", stage=3, **_BOTH),
    replace(
        _deepspeed("deepspeed_stage_3_offload_nvme", stage=3, nvme_path=".", **_NVME),
        needs="libaio",
    ),
    Entry("horovod", "horovod", is_ddp="rounding", horovodrun=True),
    _bagua("gradient_allreduce", bar="exact", is_ddp="bits"),
    _bagua("bytegrad"),
    _bagua("decentralized", equal_ranks=False),
    _bagua("decentralized", peer_selection_mode="shift_one", equal_ranks=False),
    _bagua("low_precision_decentralized", equal_ranks=False),
    _bagua("async", sync_interval_ms=5, warmup_steps=4, bar="async", equal_ranks=False, resumed="like"),
    _bagua("qadam", adam=True),
)
