"""What runs, in the names that scripts written for Accelerate compare with."""

from __future__ import annotations

from typing import Any

import torch

from core.attributes import NamedAttributes
from core.errors import nearest
from core.plan import Plan
from core.precisions.base import Precision
from core.runtime.engine_facts import EngineFacts
from core.strategies.base import Strategy

__all__ = ["FactsView", "RunFacts"]

_MIXED = {torch.float32: "no", torch.float16: "fp16", torch.bfloat16: "bf16"}


class RunFacts(EngineFacts):
    """The part of :class:`core.Runtime` that says what runs, and which process this is."""

    plan: Plan
    """What was resolved: what runs, on which devices, and why."""

    @property
    def device(self) -> torch.device:
        """The device that this process works on."""
        return self._strategy.root_device

    @property
    def num_processes(self) -> int:
        """The number of processes of the run, on all machines."""
        return self._strategy.world_size

    @property
    def process_index(self) -> int:
        """The number of this process among all processes, from 0."""
        return self._strategy.global_rank

    @property
    def local_process_index(self) -> int:
        """The number of this process on its machine, from 0."""
        return self._strategy.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0 among all processes."""
        return self._strategy.global_rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is process 0 of its machine."""
        return self._strategy.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last of all processes."""
        return self.process_index == self.num_processes - 1

    @property
    def use_distributed(self) -> bool:
        """Whether the run has several processes."""
        return self.num_processes > 1

    @property
    def multi_device(self) -> bool:
        """Whether the run has several processes, each on a device other than the CPU."""
        return self.use_distributed and self.device.type != "cpu"

    @property
    def distributed_type(self) -> str:
        """How the run is distributed, in Accelerate's spelling where Accelerate has it.

        ``NO`` for one process; ``MULTI_`` and the kind of device, such as ``MULTI_CPU``, for several; the name that
        the strategy declares, such as ``FSDP``, if it declares one.
        """
        strategy = self._strategy
        if strategy.distributed_type is not None:
            return strategy.distributed_type
        accelerator = strategy.accelerator
        return f"MULTI_{accelerator.device_family or accelerator.name.upper()}" if self.use_distributed else "NO"

    @property
    def mixed_precision(self) -> str:
        """``no``, ``fp16`` or ``bf16``, if parameters stay in 32 bits; otherwise the name of the precision."""
        return _mixed_precision(self._strategy.precision)

    @property
    def scaler(self) -> Any:
        """The :class:`torch.amp.GradScaler` of the run, from its start on; ``None`` if the loss is not scaled."""
        return getattr(self._strategy.precision, "scaler", None)


class FactsView(RunFacts, NamedAttributes):
    """What :attr:`core.Runtime.state` returns.

    Args:
        strategy: Of the run.
        plan: Of the run.
        front_end: The class of the Runtime, whose other members an attribute that is not here may be.
    """

    def __init__(self, strategy: Strategy, plan: Plan, front_end: type) -> None:
        self._strategy, self.plan, self._front_end = strategy, plan, front_end

    def _remedy(self, name: str) -> tuple[str, str]:
        own = [each for each in dir(self) if not each.startswith("_")]
        return "runtime.state", f" Use runtime.{name}." if hasattr(self._front_end, name) else nearest(name, own)

    @property
    def backend(self) -> str | None:
        """The ``torch.distributed`` backend; ``None`` if the run has no process group."""
        return self.plan.process_group_backend

    def __repr__(self) -> str:
        backend = "" if self.backend is None else f"  Backend: {self.backend}"
        return (
            f"Distributed environment: {self.distributed_type}{backend}\n"
            f"Num processes: {self.num_processes}\n"
            f"Process index: {self.process_index}\n"
            f"Local process index: {self.local_process_index}\n"
            f"Device: {self.device}\n"
            f"Mixed precision: {self.mixed_precision}"
        )


def _mixed_precision(precision: Precision) -> str:
    if precision.param_dtype is torch.float32:
        return _MIXED.get(precision.compute_dtype, precision.name)
    return precision.name
