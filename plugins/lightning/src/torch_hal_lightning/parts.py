"""Parts of a Plan as Lightning's objects: accelerator, cluster environment, launcher, checkpoint format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO as LightningCheckpointIO
from lightning.fabric.plugins import ClusterEnvironment as LightningEnvironment
from torch import nn

from torch_hal.checkpoints import CheckpointIO
from torch_hal.errors import ConfigurationError
from torch_hal.strategies import Strategy
from torch_hal_lightning.planning import Planned

__all__ = [
    "PlannedCheckpointIO",
    "PlannedEnvironment",
    "accelerator_for",
    "check_optimizers",
    "is_part",
    "launch",
    "load_weights",
    "reduced",
]


def accelerator_for(planned: Planned, base: type[Any]) -> Any:
    """The planned accelerator as an object of ``base``, the class Accelerator of Lightning's Trainer or Fabric.

    A class of its own for each Plan: Lightning asks the class for its devices, not the object.
    """
    accelerator = planned.strategy.accelerator
    devices = [torch.device(device) for device in planned.plan.devices]

    class PlannedAccelerator(base):
        """The accelerator of a Plan, with the devices that were planned."""

        def setup_device(self, device: torch.device) -> None:
            """Make ``device`` the current one."""
            accelerator.setup_device(device)

        def teardown(self) -> None:
            """Free the memory that torch caches."""
            accelerator.empty_cache(devices[0])

        def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
            """The vendor's statistics."""
            return accelerator.get_device_stats(torch.device(device))

        @staticmethod
        def parse_devices(devices: Any) -> Any:
            """Planned already."""
            return devices

        @staticmethod
        def get_parallel_devices(_: Any) -> list[torch.device]:
            """The planned ones."""
            return devices

        @staticmethod
        def auto_device_count() -> int:
            """How many were planned."""
            return len(devices)

        @staticmethod
        def is_available() -> bool:
            """It was found when the Plan was made."""
            return True

        @staticmethod
        def name() -> str:
            """The planned name."""
            return planned.plan.accelerator.name

    PlannedAccelerator.__name__ = PlannedAccelerator.__qualname__ = f"{type(accelerator).__name__}"
    return PlannedAccelerator()


class PlannedEnvironment(LightningEnvironment):
    """The ranks of a live strategy, as Lightning asks for them.

    Args:
        strategy: The strategy. Its cluster environment changes when it starts processes.
    """

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self._strategy = strategy

    @property
    def creates_processes_externally(self) -> bool:
        """Whether the strategy need start none."""
        return self._strategy.cluster_environment.creates_processes_externally

    @property
    def main_address(self) -> str:
        """The address of rank 0's machine."""
        return self._strategy.cluster_environment.main_address

    @property
    def main_port(self) -> int:
        """The port at which the processes meet."""
        return self._strategy.cluster_environment.main_port

    @staticmethod
    def detect() -> bool:
        """The Plan has detected it."""
        return True

    def world_size(self) -> int:
        """The number of processes."""
        return self._strategy.world_size

    def set_world_size(self, size: int) -> None:
        """Not set from outside: the Plan decides."""

    def global_rank(self) -> int:
        """This process's number."""
        return self._strategy.global_rank

    def set_global_rank(self, rank: int) -> None:
        """Not set from outside: the cluster environment tells."""

    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self._strategy.local_rank

    def node_rank(self) -> int:
        """This machine's number."""
        return self._strategy.node_rank


class PlannedCheckpointIO(LightningCheckpointIO):
    """A CheckpointIO of torch-hal, as Lightning calls it. A checkpoint is committed or absent.

    Args:
        strategy: The strategy; it says where a state that is divided among processes belongs.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @property
    def format(self) -> CheckpointIO:
        """The CheckpointIO of torch-hal."""
        return self._strategy.checkpoint_io

    @property
    def is_collective(self) -> bool:
        """Whether every process writes its part."""
        return self.format.is_collective

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint; from rank 0, or from all if :attr:`is_collective`."""
        options = () if storage_options is None else (storage_options,)
        self.format.save_checkpoint(plain(checkpoint), path, *options)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, its tensors on the CPU. It holds plain values and tensors only.

        Raises:
            ConfigurationError: ``weights_only=False`` or a ``map_location`` other than the CPU.
        """
        if weights_only is False:
            raise ConfigurationError(
                "weights_only=False: torch-hal's checkpoint formats hold tensors and plain values only. Leave it out."
            )
        if map_location is not None and torch.device(map_location).type != "cpu":
            raise ConfigurationError(f"map_location={map_location!r}: leave it out; states are moved when loaded.")
        return self._strategy.load_checkpoint(path)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint."""
        self.format.remove_checkpoint(path)

    def teardown(self) -> None:
        """Wait for writes that are still running."""
        self.format.wait()


def plain(value: Any) -> Any:
    """``value`` with subclasses of dict as plain ones: Lightning's ``AttributeDict`` of hyperparameters."""
    kind = type(value)
    if kind is dict or (issubclass(kind, dict) and kind.__module__.startswith(("lightning", "pytorch_"))):
        return {key: plain(item) for key, item in value.items()}
    return value


def launch(strategy: Strategy) -> None:
    """Start the processes of the run that nothing else has started; this one is local rank 0 of them."""
    strategy.launch(lambda: None)


def check_optimizers(strategy: Strategy, optimizers: list[Any]) -> None:
    """Let ``strategy`` prepare optimizers in place.

    Raises:
        ConfigurationError: It replaces one, or steps it itself, which Lightning would not know of.
    """
    ready = strategy.setup_optimizers(optimizers)
    if any(new is not old for new, old in zip(ready, optimizers, strict=True)):
        raise ConfigurationError(
            f"strategy={strategy.name!r} cannot run under Lightning: it replaces optimizers, and Lightning's "
            "schedulers hold the ones of configure_optimizers. Use strategy='ddp', or core.Trainer."
        )


def is_part(group: Any) -> bool:
    """Whether ``group`` is a process group other than that of all processes."""
    return group is not None and group is not torch.distributed.group.WORLD


def reduced(strategy: Strategy, tensor: Any, reduce_op: Any) -> Any:
    """``tensor`` combined over all processes, by Lightning's names of reductions; anything else as it is."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    name = "mean" if reduce_op is None else str(reduce_op).rpartition(".")[2].lower()
    with strategy.assume_alike():
        return strategy.reduce(tensor, {"avg": "mean", "product": "prod"}.get(name, name))


def load_weights(strategy: Strategy, module: nn.Module, weights: Mapping[str, Any], strict: bool) -> None:
    """Load what this process holds of ``module``; without ``strict``, only the names that both have."""
    if not strict:
        weights = {name: weights.get(name, value) for name, value in module.state_dict().items()}
    strategy.load_module_state(module, weights)
