"""A Plan's strategy as one of Lightning's Trainer: it starts the processes, joins their group and wraps the module."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.plugins.layer_sync import LayerSync
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers.launcher import _Launcher
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed.tensor import DTensor

from torch_hal.strategies import DDPStrategy as CoreDDPStrategy
from torch_hal.strategies import Strategy, desynchronize, move_module
from torch_hal_lightning.parallel import PlannedProcesses
from torch_hal_lightning.parts import PlannedCheckpointIO, check_optimizers, is_part, launch, load_weights, reduced
from torch_hal_lightning.planning import Planned
from torch_hal_lightning.random_state import RandomStates

__all__ = ["BatchNorms", "PlannedDDP", "PlannedSharded", "PlannedSingleDevice", "strategy_for"]


class PlannedSingleDevice(RandomStates, SingleDeviceStrategy):
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

    def model_to_device(self) -> None:
        """Every parameter stays the same object, which ``module.to`` alone does not do on every device."""
        assert self.model is not None
        move_module(self.model, self.root_device)

    def teardown(self) -> None:
        """As Lightning does it; on the way back to the host too, every parameter stays the same object."""
        if self.lightning_module is not None:
            move_module(self.lightning_module, torch.device("cpu"))
        super().teardown()


class _StartScripts(_Launcher):
    """Starts the script again for each further process, by the planned strategy."""

    def __init__(self, strategy: PlannedDDP) -> None:
        self._strategy = strategy

    @property
    def is_interactive_compatible(self) -> bool:
        return False

    def launch(self, function: Any, *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        launch(self._strategy.planned.strategy)
        self._strategy.set_world_ranks()
        return function(*args, **kwargs)

    def kill(self, signum: Any) -> None:
        """Nothing to do: the processes end with this one, and receive the terminal's signals themselves."""


class PlannedDDP(RandomStates, PlannedProcesses, DDPStrategy):
    """Several processes whose gradients are averaged in backward, as the planned strategy does it.

    Args:
        planned: The Plan.
    """

    def _configure_launcher(self) -> None:
        self._launcher = _StartScripts(self) if self.starts_scripts else None

    def setup_distributed(self) -> None:
        """Join the process group of the run, once; it is left when the process ends, as Lightning does."""
        self.set_world_ranks()
        self.join()

    def model_to_device(self) -> None:
        """Every parameter stays the same object, which ``module.to`` alone does not do on every device."""
        assert self.model is not None
        move_module(self.model, self.root_device)

    def teardown(self) -> None:
        """As Lightning does it; on the way back to the host too, every parameter stays the same object."""
        if self.lightning_module is not None:
            self.model = self.lightning_module  # the wrapper holds the parameters where they are
            move_module(self.lightning_module, torch.device("cpu"))
        super().teardown()

    def configure_ddp(self) -> None:
        """Wrap the module as the planned strategy does."""
        module: Any = self.lightning_module
        self.model = self.core.setup_module(module)

    def setup_optimizers(self, trainer: Any) -> None:
        """Those of ``configure_optimizers``, prepared in place."""
        super().setup_optimizers(trainer)
        check_optimizers(self.core, self.optimizers)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Combined over all processes; not every collective backend has an average, or one of integers."""
        if is_part(group):
            return super().reduce(tensor, group, reduce_op)
        return reduced(self.core, tensor, reduce_op)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """A context in which backward does not reduce gradients."""
        assert self.model is not None
        with self.core.no_sync(self.model):
            yield

    def write_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any
    ) -> None:
        """From process 0, or from all if each writes its part."""
        io = self.checkpoint_io
        if self.is_global_zero or (isinstance(io, PlannedCheckpointIO) and io.is_collective):
            io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)


class PlannedSharded(PlannedDDP):
    """A strategy that divides the module among the processes, in place, such as ``fsdp``."""

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """True: each process loads its part."""
        return True

    def setup(self, trainer: Any) -> None:
        """As Lightning does it; without training, a module that an earlier fit has divided is used as it is."""
        assert self.lightning_module is not None
        assert self.accelerator is not None
        is_divided = any(isinstance(one, DTensor) for one in self.lightning_module.parameters())
        if trainer.state.fn == TrainerFn.FITTING or not is_divided:
            super().setup(trainer)
            return
        # Lightning would broadcast the tensors of rank 0, but each process holds a different shard.
        self.accelerator.setup(trainer)
        self.setup_precision_plugin()

    def model_to_device(self) -> None:
        """The strategy moves parts while it divides the module; without training it stays whole."""
        assert self.lightning_module is not None
        if self.lightning_module.trainer.state.fn != TrainerFn.FITTING:
            super().model_to_device()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Through the module's ``__call__``, which gathers its parameters."""
        with self.precision_plugin.train_step_context():
            return self._through_call("training_step", *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Like :meth:`training_step`."""
        with self.precision_plugin.val_step_context():
            return self._through_call("validation_step", *args, **kwargs)

    def _through_call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        module = self.lightning_module
        assert module is not None

        def forward(*inner: Any, **options: Any) -> Any:
            del module.__dict__["forward"]
            return getattr(module, name)(*inner, **options)

        module.__dict__["forward"] = forward
        try:
            return module(*args, **kwargs)
        finally:
            module.__dict__.pop("forward", None)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """As the strategy has it: each process its part, or process 0 all."""
        assert self.lightning_module is not None
        return self.core.module_state(self.lightning_module)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load each process's part."""
        assert self.lightning_module is not None
        load_weights(self.core, self.lightning_module, checkpoint["state_dict"], strict)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """As the strategy has it."""
        return self.core.optimizer_state(getattr(optimizer, "optimizer", optimizer))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load each process's part."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            self.core.load_optimizer_state(optimizer, state)

    def teardown(self) -> None:
        """Leave the module divided, on its device."""
        self.precision_plugin.teardown()
        self.checkpoint_io.teardown()


class BatchNorms(LayerSync):
    """Batch norm layers that normalize over all processes, as the planned strategy does it on any device.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._layers: list[nn.Module] = []

    def apply(self, model: nn.Module) -> nn.Module:
        """Synchronize them, in place."""
        self._layers = self._strategy.sync_batch_norm(model)
        return model

    def revert(self, model: nn.Module) -> nn.Module:
        """Restore them."""
        desynchronize(self._layers)
        return model


def strategy_for(planned: Planned) -> PlannedSingleDevice | PlannedDDP:
    """Lightning's strategy for a Plan."""
    if not planned.is_parallel:
        return PlannedSingleDevice(planned)
    # One that does not wrap modules in DistributedDataParallel divides them in place.
    return PlannedDDP(planned) if isinstance(planned.strategy, CoreDDPStrategy) else PlannedSharded(planned)
