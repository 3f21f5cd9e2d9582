"""What Lightning's strategies for several processes have in common: those of its Trainer and of its Fabric."""

from __future__ import annotations

from typing import Any

import torch

from torch_hal.strategies import Strategy
from torch_hal_lightning.parts import PlannedEnvironment
from torch_hal_lightning.planning import Planned

__all__ = ["PlannedProcesses"]


class PlannedProcesses:
    """The processes of a Plan; a base of a class that has one of Lightning's DDPStrategy as its other base.

    Args:
        planned: The Plan.
    """

    def __init__(self, planned: Planned) -> None:
        super().__init__(
            parallel_devices=None,
            cluster_environment=PlannedEnvironment(planned.strategy),
            process_group_backend=planned.plan.process_group_backend,
        )  # type: ignore[call-arg]
        self.planned = planned
        self._is_joined = False

    @property
    def core(self) -> Strategy:
        """The live strategy of torch-hal."""
        return self.planned.strategy

    @property
    def starts_scripts(self) -> bool:
        """Whether this run starts the script again for each further process."""
        return self.planned.plan.launcher is not None

    @property
    def root_device(self) -> torch.device:
        """This process's device."""
        return self.core.root_device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The part of the data that this process takes."""
        return {"num_replicas": self.core.data_shards, "rank": self.core.data_shard}

    def join(self) -> None:
        """Join the process group of the run, once; it is left when the process ends, as Lightning does."""
        if not self._is_joined:
            self._is_joined = True
            self.core.setup_environment()

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the other processes, if they are connected."""
        if self._is_joined:
            self.core.barrier()
