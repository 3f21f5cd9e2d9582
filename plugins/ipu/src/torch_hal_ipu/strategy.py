"""The strategy ``ipu``: whole training and evaluation steps, compiled by poptorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import poptorch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.errors import CheckpointError, ConfigurationError, DeviceError
from core.strategies import SingleDeviceStrategy
from core.strategies.base import TrainingStep, TrainingStepOptions
from torch_hal_ipu.executable import Devices, Executable, joined
from torch_hal_ipu.optimizers import NativeOptimizer
from torch_hal_ipu.tracing import TracedStep

__all__ = ["IPUStrategy"]

ConfigureOptions = Callable[[Any, bool], Any]

_STATE = "poptorch"
"""What a checkpoint has the optimizer's state under: torch's own cannot take it for theirs, which lies elsewhere."""


class IPUStrategy(SingleDeviceStrategy):
    """One process drives all IPUs of the machine; poptorch compiles the module's step and replicates it over them.

    Batch and parameters are the host's; a step gets a batch of the loader (``accumulate_grad_batches`` of them, joined)
    and splits it along its first dimension over device iterations, accumulation and replicas. Each device iteration
    is one step of the optimizer, on the mean gradient of its parts.

    Args:
        device_iterations: Steps of the optimizer that one call makes, one after another, each on its part of the batch.
        ipus_per_replica: IPUs that one copy of the module takes, where its layers are placed on several; ``devices=``
            must be a multiple.
        executable_cache: A folder where poptorch keeps what it compiled.
        configure_options: ``configure_options(options, training)`` may change the ``poptorch.Options`` of a step before
            it is compiled; what this strategy sets is set after it.
        **parts: As in :class:`core.Strategy`.

    Raises:
        ConfigurationError: A number is not a whole one from 1.
    """

    name = "ipu"
    accelerators: ClassVar[tuple[str, ...] | None] = ("ipu",)
    precisions = ("32-true", "16-true")
    clip_algorithms: ClassVar[tuple[str, ...]] = ("norm",)
    one_process_per_node: ClassVar[bool] = True
    serves_own_loop: ClassVar[bool] = False

    def __init__(
        self,
        *,
        device_iterations: int = 1,
        ipus_per_replica: int = 1,
        executable_cache: str | os.PathLike[str] | None = None,
        configure_options: ConfigureOptions | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        for argument, value in (("device_iterations", device_iterations), ("ipus_per_replica", ipus_per_replica)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{argument}={value!r}. Valid: a whole number from 1.")
        self.device_iterations = device_iterations
        self.ipus_per_replica = ipus_per_replica
        self.executable_cache = executable_cache
        self.configure_options = configure_options
        self._devices = Devices()
        self._training: Executable | None = None
        self._evaluations: list[Executable] = []
        self._optimizers: dict[Optimizer, NativeOptimizer] = {}
        """By poptorch's own."""

    def connect(self, **parts: Any) -> None:
        """As in the base class.

        Raises:
            DeviceError: The IPUs are no whole number of replicas, or others than poptorch can be told to take.
        """
        super().connect(**parts)
        count = len(self.parallel_devices)
        if count % self.ipus_per_replica:
            raise DeviceError(
                f"devices: {count} IPU(s) are no whole number of replicas of ipus_per_replica={self.ipus_per_replica}. "
                "Valid: a multiple."
            )
        indices = [device.index for device in self.parallel_devices]
        if count > 1 and indices != list(range(count)):
            raise DeviceError(
                f"devices={indices}: poptorch itself chooses which IPUs serve together. Valid: a count, or one index."
            )

    @property
    def root_device(self) -> torch.device:
        """The host, where tensors are when Python sees them."""
        return torch.device("cpu")

    @property
    def replicas(self) -> int:
        """Copies of the module, which share a step's work."""
        return len(self.parallel_devices) // self.ipus_per_replica

    def teardown(self, failed: bool = False) -> None:
        """Bring weights to the host, and give the IPUs back."""
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
        """In place of torch's poptorch's own, since only those hand out the state that they keep on the device."""
        natives = [NativeOptimizer(optimizer) for optimizer in super().setup_optimizers(optimizers)]
        self._optimizers.update({native.native: native for native in natives})
        return [native.native for native in natives]

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """The whole step, compiled at its first call; see the class.

        A batch that is only collected, for accumulation, has no loss yet: the step returns ``None`` for it.

        Raises:
            ConfigurationError: Gradients are to be limited in a way that the optimizer cannot.
        """
        optimizer = self._optimizers[options.optimizer]
        if options.clip_value is not None:
            _limit_gradients(optimizer.native, options.clip_value)

        share = 1.0
        """Of the batches that a step adds up, how many there are: less than all where an epoch ends."""

        def loss(batch: Any) -> Tensor:
            value = forward(batch, 0)
            if value is None:
                raise ConfigurationError("training_step: returned None, but a compiled step can skip no batch.")
            marked: Tensor = poptorch.identity_loss(value * share if share != 1 else value, reduction="none")
            return marked

        def build(step: TracedStep, items: int, batches: int) -> Any:
            parts = self.device_iterations * batches
            if items % parts:
                raise ConfigurationError(
                    f"strategy 'ipu': {items} items in {batches} batch(es) of the loader cannot be split evenly over "
                    f"device_iterations={self.device_iterations} and {batches} accumulated batch(es). Valid: a "
                    f"multiple of {parts}; drop_last=True on the loader leaves out a smaller last batch."
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
        """Of a step on so many items, in so many parts on each replica; one replica alone where those are uneven."""
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
        """``module``, its forward pass compiled; a batch that cannot be split evenly runs on one replica."""

        def build(step: TracedStep, items: int, batches: int) -> Any:
            del batches
            return poptorch.inferenceModel(step, self._options(items, self.device_iterations, training=False))

        step = TracedStep(module, lambda batch: module(batch, 0))
        executable = Executable(self._devices, step, build)
        self._evaluations.append(executable)
        return _Inference(executable)

    # -- state ---------------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """As in the base class, of the weights as the devices have them; plain tensors."""
        if self._training is not None:
            self._training.copy_weights_to_host()
        # poptorch makes parameters of a class of its own, which has no place in a file.
        return {
            name: value.as_subclass(Tensor) if isinstance(value, Tensor) else value
            for name, value in super().module_state(module).items()
        }

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """As in the base class; it goes to the devices with the next step."""
        self._devices.release()
        super().load_module_state(module, state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As the devices have it, with the settings that a scheduler has made by now; of no use to other hardware."""
        self._optimizers[optimizer].follow()
        return {_STATE: super().optimizer_state(optimizer)}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """As in the base class.

        Raises:
            CheckpointError: The state is not of an IPU's optimizer.
        """
        if _STATE not in state:
            raise CheckpointError(
                "optimizer: its state was not written on IPUs, and theirs is of another form. Valid: a checkpoint of "
                "strategy 'ipu'."
            )
        self._devices.release()
        super().load_optimizer_state(optimizer, state[_STATE])
        self._optimizers[optimizer].lead()


class _Inference(nn.Module):
    """A compiled forward pass in place of a module's."""

    def __init__(self, executable: Executable) -> None:
        super().__init__()
        self._executable = executable

    def forward(self, batch: Any, batch_idx: int) -> Any:
        """The module's output for ``batch``; in a compiled step each batch is number 0."""
        del batch_idx
        return self._executable(batch)


def _limit_gradients(optimizer: Any, value: float) -> None:
    if not hasattr(optimizer, "max_grad_norm"):
        raise ConfigurationError(
            f"gradient_clip_val={value!r} with {type(optimizer).__name__}: a compiled step limits gradients by "
            "max_grad_norm of poptorch's optimizer alone. Valid: 'norm' with SGD, Adam or AdamW, or no limit."
        )
    optimizer.max_grad_norm = value
