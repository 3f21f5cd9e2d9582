"""Lightning's Fabric, with hardware, strategy, precision and formats from the Plan."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning import fabric
from lightning.fabric.accelerators import Accelerator
from lightning.fabric.plugins import precision as precisions
from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.fabric.strategies.launchers.launcher import _Launcher
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from torch import nn

from torch_hal.plan import Plan
from torch_hal.strategies import DDPStrategy as CoreDDPStrategy
from torch_hal.strategies import Strategy, move_module
from torch_hal_lightning.arguments import lightning_arguments
from torch_hal_lightning.parallel import PlannedProcesses
from torch_hal_lightning.parts import PlannedCheckpointIO, check_optimizers, is_part, launch, load_weights, reduced
from torch_hal_lightning.planning import Planned, check_plugins, plan_run

__all__ = ["Fabric"]


class PlannedSingleDevice(SingleDeviceStrategy):
    """One process on the planned device.

    Args:
        planned: The Plan.
    """

    def __init__(self, planned: Planned) -> None:
        super().__init__(device=planned.plan.devices[0])
        self.planned = planned

    def setup_environment(self) -> None:
        """Make the device the current one, and check that it can do the precision."""
        self.planned.strategy.setup_environment()
        super().setup_environment()

    def module_to_device(self, module: nn.Module) -> None:
        """Every parameter stays the same object, so an optimizer made before trains it."""
        move_module(module, self.root_device)


class _StartScripts(_Launcher):
    def __init__(self, strategy: PlannedDDP) -> None:
        self._strategy = strategy

    @property
    def is_interactive_compatible(self) -> bool:
        return False

    def launch(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        launch(self._strategy.core)
        return function(*args, **kwargs)


class _NoSync(_BackwardSyncControl):
    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        return self._strategy.no_sync(module) if enabled else nullcontext()


class PlannedDDP(PlannedProcesses, DDPStrategy):
    """Several processes, wrapped modules and prepared optimizers as the planned strategy makes them.

    Args:
        planned: The Plan.
    """

    def __init__(self, planned: Planned) -> None:
        super().__init__(planned)
        self._backward_sync_control = _NoSync(self.core)

    def _configure_launcher(self) -> None:
        self._launcher = _StartScripts(self) if self.starts_scripts else None

    def setup_environment(self) -> None:
        """Join the process group of the run, once; it is left when the process ends."""
        self._set_world_ranks()
        self.join()

    def module_to_device(self, module: nn.Module) -> None:
        """Every parameter stays the same object, so an optimizer made before trains it.

        A strategy that divides the module moves parts of it itself.
        """
        if isinstance(self.core, CoreDDPStrategy):
            move_module(module, self.root_device)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Wrapped, or divided among the processes."""
        return self.core.setup_module(module)

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Prepared in place."""
        check_optimizers(self.core, [optimizer])
        return optimizer

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Combined over all processes; not every collective backend has an average, or one of integers."""
        if is_part(group):
            return super().all_reduce(tensor, group, reduce_op)
        return reduced(self.core, tensor, reduce_op)

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """As the strategy has it: each process its part, or process 0 all."""
        return self.core.module_state(self.core.unwrap_module(module))

    def load_module_state_dict(self, module: nn.Module, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Load each process's part."""
        load_weights(self.core, self.core.unwrap_module(module), state_dict, strict)

    def get_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """As the strategy has it."""
        return self.core.optimizer_state(optimizer)

    def save_checkpoint(
        self,
        path: str | os.PathLike[str],
        state: dict[str, Any],
        storage_options: Any = None,
        filter: Any = None,  # noqa: A002
    ) -> None:
        """From process 0, or from all if each writes its part."""
        io = self.checkpoint_io
        converted = self._convert_stateful_objects_in_state(state, filter=filter or {})
        if self.is_global_zero or (isinstance(io, PlannedCheckpointIO) and io.is_collective):
            io.save_checkpoint(checkpoint=converted, path=path, storage_options=storage_options)


class Fabric(fabric.Fabric):
    """``lightning.fabric.Fabric`` on any accelerator, strategy, precision and checkpoint format of torch-hal.

    Args:
        accelerator: As for :class:`torch_hal_lightning.Trainer`, and so are the others.
        strategy: As there.
        devices: As there.
        num_nodes: As there.
        precision: As there.
        checkpoint_io: As there.
        cluster_environment: As there.
        plugins: As there.
        **others: All other arguments of Lightning's Fabric.

    Raises:
        CoreError: An argument cannot be resolved here, or Lightning cannot run the strategy.
    """

    def __init__(
        self,
        *,
        accelerator: Any = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        num_nodes: Any = "auto",
        precision: Any = "auto",
        checkpoint_io: Any = "auto",
        cluster_environment: Any = "auto",
        plugins: Any = None,
        **others: Any,
    ) -> None:
        own = check_plugins(plugins)
        planned = plan_run(
            "Fabric",
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            checkpoint_io=checkpoint_io,
            cluster_environment=cluster_environment,
        )
        self.plan: Plan = planned.plan
        made = PlannedDDP(planned) if planned.is_parallel else PlannedSingleDevice(planned)
        super().__init__(**lightning_arguments(planned, made, own, Accelerator, precisions), **others)
