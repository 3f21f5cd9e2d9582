"""Lightning's Trainer, with hardware, strategy, precision and formats from the Plan."""

from __future__ import annotations

from typing import Any

from lightning import pytorch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins import precision as precisions

from torch_hal.plan import Plan
from torch_hal_lightning.arguments import lightning_arguments
from torch_hal_lightning.planning import check_plugins, plan_run
from torch_hal_lightning.strategies import BatchNorms, PlannedDDP, strategy_for

__all__ = ["Trainer"]


class Trainer(pytorch.Trainer):
    """``lightning.pytorch.Trainer`` on any accelerator, strategy, precision and checkpoint format of torch-hal.

    Args:
        accelerator: A name, such as that of a plugin, an object of :class:`core.Accelerator`, or ``"auto"``.
        strategy: A name or an object of :class:`core.Strategy`; those that Lightning cannot run are refused by name.
        devices: As in :mod:`core.accelerators.devices`, on every accelerator alike.
        num_nodes: The number of machines; by default what the cluster environment reports.
        precision: A name or an object of :class:`core.Precision`.
        checkpoint_io: A name or an object of :class:`core.CheckpointIO`; Lightning's own format unless given.
        cluster_environment: A name or an object of :class:`core.ClusterEnvironment`; detected unless given.
        plugins: Lightning's own objects: a precision, a CheckpointIO or a LayerSync.
        sync_batchnorm: Whether batch norm layers normalize over all processes.
        **others: All other arguments of Lightning's Trainer.

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
        sync_batchnorm: bool = False,
        **others: Any,
    ) -> None:
        own = check_plugins(plugins)
        planned = plan_run(
            "Trainer",
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            checkpoint_io=checkpoint_io,
            cluster_environment=cluster_environment,
        )
        self.plan: Plan = planned.plan
        made = strategy_for(planned)
        if sync_batchnorm:
            planned.strategy.check_sync_batch_norm()
            if isinstance(made, PlannedDDP):
                own.append(BatchNorms(planned.strategy))
        super().__init__(**lightning_arguments(planned, made, own, Accelerator, precisions), **others)
