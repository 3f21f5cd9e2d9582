"""What a Trainer says about the hardware it runs on, and about the module that it runs."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from core.accelerators.base import Accelerator
from core.plan import Plan
from core.precisions.base import Precision
from core.runtime import Runtime
from core.strategies.base import Strategy
from core.trainer.module import Module

__all__ = ["HardwareFacts"]


class HardwareFacts:
    """The part of :class:`core.Trainer` with processes, devices and the module. Reading it starts nothing."""

    runtime: Runtime
    _module: weakref.ref[Module] | None
    _interrupted: bool

    @property
    def plan(self) -> Plan:
        """What runs, on which devices, and why."""
        return self.runtime.plan

    @property
    def strategy(self) -> Strategy:
        """The strategy. Outside a run, its methods that need the processes cannot be used."""
        return self.runtime.strategy

    @property
    def accelerator(self) -> Accelerator:
        """The hardware."""
        return self.strategy.accelerator

    @property
    def precision(self) -> str:
        """The name of the dtype policy, such as ``"bf16-mixed"``."""
        return self.plan.precision.name

    @property
    def precision_plugin(self) -> Precision:
        """The dtype policy itself."""
        return self.strategy.precision

    @property
    def world_size(self) -> int:
        """The number of processes, on all machines."""
        return self.strategy.world_size

    @property
    def global_rank(self) -> int:
        """The number of this process among all processes, from 0."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine, from 0."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this machine, from 0."""
        return self.strategy.node_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is process 0 among all processes."""
        return self.runtime.is_main_process

    @property
    def num_nodes(self) -> int:
        """The number of machines."""
        return self.plan.num_nodes

    @property
    def num_devices(self) -> int:
        """The number of devices that are used on each machine."""
        return len(self.plan.devices)

    @property
    def device_ids(self) -> list[int]:
        """The indices of the devices that are used on each machine, by local rank."""
        indices = [torch.device(device).index for device in self.plan.devices]
        return [number if index is None else index for number, index in enumerate(indices)]

    @property
    def lightning_module(self) -> Module | None:
        """The module of the running or the last run; ``None`` if there was none, or it no longer exists."""
        return None if self._module is None else self._module()

    @property
    def model(self) -> Module | None:
        """The same, with none of the wrappers of a strategy."""
        return self.lightning_module

    @property
    def interrupted(self) -> bool:
        """Whether an exception, such as a KeyboardInterrupt, has ended the running or the last run."""
        return self._interrupted

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 only."""
        self.runtime.print(*args, **kwargs)
