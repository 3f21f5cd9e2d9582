"""The strategies to measure, and the formulas that their figures are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import torch
from tasks import Transformer
from torch import nn

__all__ = ["BYTES", "FACTS", "ITEMS", "LENGTH", "ROWS", "VOCABULARY", "Row", "build"]

VOCABULARY, WIDTH = 96, 384
ITEMS, LENGTH = 2, 32
"""Texts per process and step, and characters per text."""
PERSISTENT = 100_000
"""The number of elements from which DeepSpeed's stage 3 shards a parameter."""


def build() -> nn.Module:
    """The model: a transformer of four layers and 7.2 million parameters."""
    return Transformer(VOCABULARY, WIDTH)


class Facts(NamedTuple):
    """Sizes of the model, in units of ``P``, the bytes of its parameters.

    Attributes:
        low_rank: What PowerSGD sends of the gradients at rank 1.
        small: Parameters that DeepSpeed's stage 3 does not shard.
        unplanned: Parameters that the tensor parallel plan does not shard.
        activations: A layer's output for a process's texts.
        largest: The largest parameter.
    """

    low_rank: float
    small: float
    unplanned: float
    activations: float
    largest: float


def _facts() -> tuple[int, Facts]:
    with torch.device("meta"):
        model = build()
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    total = sum(map(prod, shapes.values()))
    plan = {key.rpartition(".")[2]: style for key, style in Transformer.tensor_parallel_plan.items()}

    def is_planned(name: str) -> bool:
        *_, module, kind = name.split(".")
        return plan.get(module) == "colwise" or (plan.get(module) == "rowwise" and kind == "weight")

    low_rank = sum(sum(shape) if len(shape) > 1 else prod(shape) for shape in shapes.values())
    small = sum(prod(shape) for shape in shapes.values() if prod(shape) < PERSISTENT)
    unplanned = sum(prod(shape) for name, shape in shapes.items() if not is_planned(name))
    activations = ITEMS * LENGTH * WIDTH
    largest = max(map(prod, shapes.values()))
    return 4 * total, Facts(*(count / total for count in (low_rank, small, unplanned, activations, largest)))


BYTES, FACTS = _facts()
"""``P``, and the other sizes."""

Formula = Callable[[int], float]
"""A function of the number of processes, in units of ``P``."""


class Quantity(NamedTuple):
    """A formula as text for the table, and as a function."""

    text: str
    value: Formula | None


@dataclass(frozen=True)
class Row:
    """One strategy.

    Attributes:
        title: Its name in tables, in Markdown.
        strategy: Its name, or its class and options.
        held: Parameters, gradients and optimizer state in each process.
        sent: Bytes that each process sends a step.
        extra: What it holds in addition, as text.
        machines: The simulated machines of a run: ``"one"``, ``"two"``, or one for ``"each"`` process.
        launcher: ``"horovodrun"`` if that starts the processes.
        qadam: Whether the optimizer is ``QAdamOptimizer`` instead of ``Adam``.
        borders: Whether gradients that lie across the borders of a process's part are held whole in addition.
    """

    title: str
    strategy: str | tuple[str, Mapping[str, Any]]
    held: Quantity
    sent: Quantity
    extra: str = ""
    machines: str = "one"
    launcher: str = ""
    qadam: bool = False
    borders: bool = False

    def make(self) -> Any:
        if isinstance(self.strategy, str):
            return self.strategy
        (module, _, name), options = self.strategy[0].partition(":"), self.strategy[1]
        return getattr(import_module(module), name)(**options)

    def machines_of(self, processes: int) -> int:
        """The number of machines of a run with that many processes."""
        return {"one": 1, "two": min(2, processes), "each": processes}[self.machines]


def _ddp(**options: Any) -> tuple[str, Mapping[str, Any]]:
    return "core.strategies:DDPStrategy", options


def _deepspeed(**options: Any) -> tuple[str, Mapping[str, Any]]:
    return "torch_hal_deepspeed:DeepSpeedStrategy", options


def _others(n: int) -> float:
    """The share of all data that the other processes have."""
    return (n - 1) / n


def _per_machine(n: int) -> int:
    return max(1, n // 2)


def _hybrid(n: int) -> float:
    """Gathered twice within a machine, reduced within it, and averaged with its peer in the other one."""
    k, machines = _per_machine(n), min(2, n)
    return 4 * _others(k) + 2 / k * _others(machines)


WHOLE = Quantity("4 P", lambda n: 4)
DIVIDED = Quantity("4 P / n", lambda n: 4 / n)
STAGE_1 = Quantity("2 P + 2 P / n", lambda n: 2 + 2 / n)
STAGE_2 = Quantity("P + 3 P / n, and gradients at borders", lambda n: 1 + 3 / n)
STAGE_3 = Quantity("4 P / n, and small parameters", lambda n: 4 / n + (FACTS.small if n > 1 else 0))
ALLREDUCE = Quantity("2 P (n-1)/n", lambda n: 2 * _others(n))
HALF = Quantity("P (n-1)/n", _others)
AND_GATHER = Quantity("3 P (n-1)/n", lambda n: 3 * _others(n))
FSDP = Quantity("3 P (n-1)/n; gloo 4 P (n-1)/n", lambda n: 4 * _others(n))
BYTEGRAD = Quantity("P/2 (n-1)/n", lambda n: _others(n) / 2)
BUCKETS = "buckets"

ROWS: dict[str, Row] = {
    "single_device": Row("`single_device`", "single_device", WHOLE, Quantity("nothing", lambda n: 0)),
    "ddp": Row("`ddp`, `ddp_spawn`, `ddp_fork`, `ddp_notebook`", "ddp", WHOLE, ALLREDUCE, BUCKETS),
    "ddp_view": Row("`ddp`, `gradient_as_bucket_view=True`", _ddp(gradient_as_bucket_view=True), WHOLE, ALLREDUCE),
    "ddp_fp16": Row("`ddp`, hook `fp16_compress`", _ddp(communication_hook="fp16_compress"), WHOLE, HALF, BUCKETS),
    "ddp_bf16": Row("`ddp`, hook `bf16_compress`", _ddp(communication_hook="bf16_compress"), WHOLE, HALF, BUCKETS),
    "ddp_power_sgd": Row(
        "`ddp`, hook `power_sgd` of rank 1",
        _ddp(communication_hook="power_sgd", communication_options={"start_powerSGD_iter": 2}),
        WHOLE,
        Quantity("2 C (n-1)/n", lambda n: 2 * FACTS.low_rank * _others(n)),
        "buckets, and error feedback",
    ),
    "ddp_sharded": Row(
        "`ddp_sharded`", "ddp_sharded", Quantity("2 P + 2 P / n", lambda n: 2 + 2 / n), AND_GATHER, BUCKETS
    ),
    "fsdp": Row("`fsdp`", "fsdp", DIVIDED, FSDP),
    "fsdp_kept": Row(
        "`fsdp`, `reshard_after_forward=False`",
        ("torch_hal_fsdp:FSDPStrategy", {"reshard_after_forward": False}),
        DIVIDED,
        Quantity("2 P (n-1)/n; gloo 3 P (n-1)/n", lambda n: 3 * _others(n)),
    ),
    "fsdp_cpu_offload": Row(
        "`fsdp_cpu_offload`", "fsdp_cpu_offload", Quantity("4 P / n on the host", DIVIDED.value), FSDP
    ),
    "fsdp_hybrid": Row(
        "`fsdp_hybrid`, two machines",
        "fsdp_hybrid",
        Quantity("4 P / k", lambda n: 4 / _per_machine(n)),
        Quantity("`fsdp` of k, and 2 P/k (m-1)/m", _hybrid),
        machines="two",
    ),
    "fsdp_tensor_parallel": Row(
        "`fsdp_tensor_parallel`, one machine",
        "fsdp_tensor_parallel",
        Quantity("4 P / n, and what is not in the plan", lambda n: 4 / n + 4 * FACTS.unplanned * _others(n)),
        # Forward: two sums; backward: input gradients of the four layers that are split by columns.
        Quantity("12 A (n-1)/n a layer", lambda n: 4 * 12 * FACTS.activations * _others(n)),
    ),
    "stage_0": Row("`deepspeed`, `stage=0`", _deepspeed(stage=0), WHOLE, ALLREDUCE),
    "stage_1": Row("`deepspeed_stage_1`", "deepspeed_stage_1", STAGE_1, AND_GATHER, BUCKETS),
    "stage_2": Row("`deepspeed_stage_2`, `deepspeed`", "deepspeed_stage_2", STAGE_2, AND_GATHER, borders=True),
    "stage_3": Row(
        "`deepspeed_stage_3`",
        "deepspeed_stage_3",
        STAGE_3,
        Quantity("2 P (n-1)/n; gloo 3 P (n-1)/n", lambda n: 3 * _others(n)),
        BUCKETS,
    ),
    "stage_3_released": Row(
        "`deepspeed_stage_3`, parameters released",
        _deepspeed(
            stage=3,
            config={
                "zero_optimization": {
                    "stage3_max_live_parameters": 0,
                    "stage3_max_reuse_distance": 0,
                    "stage3_prefetch_bucket_size": 0,
                }
            },
        ),
        STAGE_3,
        FSDP,
        BUCKETS,
    ),
    "stage_1_offload": Row(
        "`deepspeed_stage_1_offload`",
        "deepspeed_stage_1_offload",
        Quantity("2 P; host 5 P / n", lambda n: 2 + 5 / n),
        AND_GATHER,
        BUCKETS,
    ),
    "stage_2_offload": Row(
        "`deepspeed_stage_2_offload`",
        "deepspeed_stage_2_offload",
        Quantity("P; host 6 P / n, and gradients at borders", lambda n: 1 + 6 / n),
        AND_GATHER,
        "two parameters in transit",
        borders=True,
    ),
    "stage_3_offload": Row(
        "`deepspeed_stage_3_offload`",
        "deepspeed_stage_3_offload",
        Quantity("small parameters; host 6 P / n", lambda n: 6 / n + (FACTS.small if n > 1 else 0)),
        Quantity("as `deepspeed_stage_3`", lambda n: 3 * _others(n)),
        BUCKETS,
    ),
    "horovod": Row("`horovod`", "horovod", WHOLE, ALLREDUCE, "its fusion buffer", launcher="horovodrun"),
    "horovod_fp16": Row(
        '`horovod`, `compression="fp16"`',
        ("torch_hal_horovod:HorovodStrategy", {"compression": "fp16"}),
        WHOLE,
        HALF,
        "its fusion buffer",
        launcher="horovodrun",
    ),
    "bagua": Row("`bagua`, `bagua_gradient_allreduce`", "bagua", WHOLE, ALLREDUCE, BUCKETS, machines="each"),
    "bytegrad": Row("`bagua_bytegrad`", "bagua_bytegrad", WHOLE, BYTEGRAD, BUCKETS, machines="each"),
    "decentralized": Row("`bagua_decentralized`", "bagua_decentralized", WHOLE, ALLREDUCE, BUCKETS, machines="each"),
    "shift_one": Row(
        '`bagua_decentralized`, `peer_selection_mode="shift_one"`',
        ("torch_hal_bagua:BaguaStrategy", {"algorithm": "decentralized", "peer_selection_mode": "shift_one"}),
        WHOLE,
        Quantity("P", lambda n: min(n - 1, 1)),
        BUCKETS,
        machines="each",
    ),
    "low_precision": Row(
        "`bagua_low_precision_decentralized`",
        "bagua_low_precision_decentralized",
        WHOLE,
        Quantity("P/2; of two processes P/4", lambda n: min(n - 1, 2) / 4),
        "buckets, and three replicas",
        machines="each",
    ),
    "async": Row(
        "`bagua_async`",
        "bagua_async",
        WHOLE,
        Quantity("2 P (n-1)/n each 500 ms", None),
        "buckets, and as much again if it averages just then",
        machines="each",
    ),
    "qadam": Row("`bagua_qadam`", "bagua_qadam", WHOLE, BYTEGRAD, BUCKETS, machines="each", qadam=True),
}
"""By a short name."""
