"""The strategy ``ipu``: whole training and evaluation steps, compiled by poptorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

import poptorch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_hal.errors import CheckpointError, ConfigurationError, DeviceError
from torch_hal.strategies import SingleDeviceStrategy, StrategyParts, TrainingStep, TrainingStepOptions
from torch_hal_ipu.executable import Devices, Executable, joined
from torch_hal_ipu.optimizers import NativeOptimizer
from torch_hal_ipu.tracing import TracedStep

__all__ = ["IPUStrategy"]

ConfigureOptions = Callable[[Any, bool], Any]

_STATE = "poptorch"
"""The key of the optimizer's state in a checkpoint, so that torch's optimizers do not load it."""


class IPUStrategy(SingleDeviceStrategy):
    """One process drives all IPUs of the machine; poptorch compiles the module's step and replicates it over them.

    Batches and parameters stay on the host. A step takes a batch of the loader (``accumulate_grad_batches`` of them,
    concatenated) and splits it along its first dimension over device iterations, accumulation and replicas. Each device
    iteration is one optimizer step, on the mean gradient of its parts.

    Args:
        device_iterations: The number of optimizer steps in one call, each on its part of the batch.
        ipus_per_replica: The number of IPUs for one copy of the module, if its layers are placed on several;
            ``devices=`` must be a multiple.
        executable_cache: The folder for poptorch's cache of compiled steps.
        configure_options: ``configure_options(options, training)`` can change the ``poptorch.Options`` of a step before
            it is compiled; the strategy's own options are set afterwards.
        **parts: As in :class:`core.Strategy`.

    Raises:
        ConfigurationError: ``device_iterations`` or ``ipus_per_replica`` is not an integer >= 1.
    """

    name = "ipu"
    accelerators: ClassVar[tuple[str, ...] | None] = ("ipu",)
    precisions = ("32-true", "16-true")
    clip_algorithms: ClassVar[tuple[str, ...]] = ("norm",)
    one_process_per_node: ClassVar[bool] = True
    applies_precision: ClassVar[bool] = False
    supports_custom_loop: ClassVar[bool] = False
    moves_batches: ClassVar[bool] = True

    def __init__(
        self,
        *,
        device_iterations: int = 1,
        ipus_per_replica: int = 1,
        executable_cache: str | os.PathLike[str] | None = None,
        configure_options: ConfigureOptions | None = None,
        **parts: Unpack[StrategyParts],
    ) -> None:
        super().__init__(**parts)
        for argument, value in (("device_iterations", device_iterations), ("ipus_per_replica", ipus_per_replica)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{argument}={value!r}: must be an integer >= 1.")
        self.device_iterations = device_iterations
        self.ipus_per_replica = ipus_per_replica
        self.executable_cache = executable_cache
        self.configure_options = configure_options
        self._devices = Devices()
        self._training: Executable | None = None
        self._evaluations: list[Executable] = []
        self._optimizers: dict[Optimizer, NativeOptimizer] = {}
        """By poptorch's optimizer."""

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            DeviceError: The number of IPUs is not a multiple of ``ipus_per_replica``, or poptorch cannot select them.
        """
        super().connect(**parts)
        count = len(self.parallel_devices)
        if count % self.ipus_per_replica:
            raise DeviceError(
                f"devices: {count} IPU(s) cannot be divided into replicas of ipus_per_replica={self.ipus_per_replica}. "
                f"Use a multiple of {self.ipus_per_replica}."
            )
        indices = [device.index for device in self.parallel_devices]
        if count > 1 and indices != list(range(count)):
            raise DeviceError(
                f"devices={indices}: poptorch itself chooses which IPUs work together. Use a count, or a single index."
            )

    @property
    def root_device(self) -> torch.device:
        """The host, where all tensors are."""
        return torch.device("cpu")

    @property
    def replicas(self) -> int:
        """The number of replicas of the module."""
        return len(self.parallel_devices) // self.ipus_per_replica

    def check_sync_batch_norm(self) -> None:
        """See the base class.

        Raises:
            ConfigurationError: There are several replicas, each of which normalizes its part of the batch.
        """
        if self.replicas > 1:
            raise ConfigurationError(
                "sync_batchnorm=True: poptorch normalizes each replica's part of the batch by itself. Leave it out, or "
                f"use devices={self.ipus_per_replica}."
            )

    def teardown(self, failed: bool = False) -> None:
        """Copy the weights to the host, and detach from the IPUs."""
        executables = [*self._evaluations, *([] if self._training is None else [self._training])]
        self._training, self._evaluations, self._optimizers = None, [], {}
        try:
            self._devices.release()
            for executable in executables:
                executable.destroy()
        finally:
            super().teardown(failed)

    # -- training ------------------------------------------------------------------------------------------------

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Replace torch's optimizers by poptorch's, which return the state that they keep on the device."""
        natives = [NativeOptimizer(optimizer) for optimizer in super().setup_optimizers(optimizers)]
        self._optimizers.update({native.native: native for native in natives})
        return [native.native for native in natives]

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """The whole step, compiled at its first call; see the class.

        For a batch that is only collected, for accumulation, the step returns ``None``.

        Raises:
            ConfigurationError: The optimizer does not support the requested gradient clipping.
        """
        optimizer = self._optimizers[options.optimizer]
        if options.clip_value is not None:
            _limit_gradients(optimizer.native, options.clip_value)

        share = 1.0
        """The number of batches in this step relative to ``accumulate``; below 1 at the end of an epoch."""

        def loss(batch: Any) -> Tensor:
            value = forward(batch, 0)
            if value is None:
                raise ConfigurationError(
                    "training_step: returned None, but a compiled step cannot skip a batch. Return a loss."
                )
            marked: Tensor = poptorch.identity_loss(value * share if share != 1 else value, reduction="none")
            return marked

        def build(step: TracedStep, items: int, batches: int) -> Any:
            parts = self.device_iterations * batches
            if items % parts:
                raise ConfigurationError(
                    f"strategy='ipu': {items} items in {batches} batch(es) of the loader cannot be split evenly over "
                    f"device_iterations={self.device_iterations} and {batches} accumulated batch(es). Use a "
                    f"multiple of {parts}; drop_last=True on the loader drops a smaller last batch."
                )
            settings = self._options(items, parts, training=True)
            settings.Training.gradientAccumulation(batches)
            return poptorch.trainingModel(step, settings, optimizer.native)

        run = self._training = Executable(self._devices, TracedStep(options.module, loss), build)
        collected: list[Any] = []

        def step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            nonlocal share
            collected.append(batch)
            if not is_step_end:
                return None
            optimizer.follow()
            if optimizer.is_changed:
                run.set_optimizer(optimizer.native)
                optimizer.is_changed = False
            batches = len(collected)
            share = batches / options.accumulate
            whole = joined(collected)
            collected.clear()
            result: Tensor = run(whole, batches)
            optimizer.mark_stepped()
            return result / share if share != 1 else result

        return step

    def _options(self, items: int, parts: int, *, training: bool) -> Any:
        """The options of a step; with items that do not divide evenly it runs on one replica."""
        replicas = self.replicas if items % (parts * self.replicas) == 0 else 1
        options = poptorch.Options()
        if self.configure_options is not None:
            self.configure_options(options, training)
        options.deviceIterations(self.device_iterations if items % parts == 0 else 1)
        options.replicationFactor(replicas)
        options.outputMode(poptorch.OutputMode.All)
        if len(self.parallel_devices) == 1 and self.parallel_devices[0].index:
            options.useIpuId(self.parallel_devices[0].index)
        if self.executable_cache is not None:
            options.enableExecutableCaching(os.fspath(self.executable_cache))
        return options

    # -- evaluation ----------------------------------------------------------------------------------------------

    def inference_module(self, module: nn.Module) -> nn.Module:
        """``module`` with a compiled forward pass; a batch that cannot be split evenly runs on one replica."""

        def build(step: TracedStep, items: int, batches: int) -> Any:
            del batches
            return poptorch.inferenceModel(step, self._options(items, self.device_iterations, training=False))

        step = TracedStep(module, lambda batch: module(batch, 0))
        executable = Executable(self._devices, step, build)
        self._evaluations.append(executable)
        return _Inference(executable)

    # -- state ---------------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """Like the base class, with the devices' weights, as plain tensors."""
        if self._training is not None:
            self._training.copy_weights_to_host()
        # poptorch changes the parameters' class, which must not be pickled.
        return {
            name: value.as_subclass(Tensor) if isinstance(value, Tensor) else value
            for name, value in super().module_state(module).items()
        }

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """See the base class; the next step copies it to the devices."""
        self._devices.release()
        super().load_module_state(module, state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The devices' state, with the current settings of a scheduler; only IPUs can load it."""
        self._optimizers[optimizer].follow()
        return {_STATE: super().optimizer_state(optimizer)}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """See the base class.

        Raises:
            CheckpointError: The state was not saved on IPUs.
        """
        if _STATE not in state:
            raise CheckpointError(
                "optimizer: its state was not written on IPUs, and has another format. Load a checkpoint of "
                "strategy='ipu', or only its weights."
            )
        self._devices.release()
        super().load_optimizer_state(optimizer, state[_STATE])
        self._optimizers[optimizer].lead()


class _Inference(nn.Module):
    """A module whose forward pass is compiled."""

    def __init__(self, executable: Executable) -> None:
        super().__init__()
        self._executable = executable

    def forward(self, batch: Any, batch_idx: int) -> Any:
        """Return the module's output for ``batch``; in a compiled step ``batch_idx`` is 0."""
        del batch_idx
        return self._executable(batch)


def _limit_gradients(optimizer: Any, value: float) -> None:
    if not hasattr(optimizer, "max_grad_norm"):
        raise ConfigurationError(
            f"gradient_clip_val={value!r} with {type(optimizer).__name__}: poptorch's optimizer has no max_grad_norm, "
            "which clips gradients in a compiled step. Use 'norm' with SGD, Adam or AdamW, or do not clip."
        )
    optimizer.max_grad_norm = value
