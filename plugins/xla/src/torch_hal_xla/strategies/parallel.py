"""A replica in a process for each device, started by torch_xla."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from core import Accelerator, CheckpointIO, ClusterEnvironment, Precision
from core.errors import ConfigurationError
from core.strategies import ParallelStrategy
from torch_hal_xla.checkpoint_io import on_host
from torch_hal_xla.environment import XLAEnvironment
from torch_hal_xla.strategies.checks import StepChecks
from torch_hal_xla.strategies.devices import require_all
from torch_hal_xla.strategies.launcher import launch
from torch_hal_xla.strategies.steps import MarksSteps

__all__ = ["XLAStrategy"]

T = TypeVar("T")

_DEBUG = "PT_XLA_DEBUG"

_OPERATIONS = {
    "mean": "REDUCE_SUM",
    "sum": "REDUCE_SUM",
    "min": "REDUCE_MIN",
    "max": "REDUCE_MAX",
    "product": "REDUCE_MUL",
}
"""By word: the name of torch_xla's."""


class XLAStrategy(MarksSteps, ParallelStrategy):
    """A replica of the module in a process for each device of the machine; gradients are averaged after backward.

    ``torch_xla.launch`` starts the processes, and XLA's own collectives connect them: there is no process group. It
    runs a function in each, so a loop of one's own goes into one: ``runtime.launch(train)``.

    Args:
        accelerator: The hardware, as an object or by name.
        cluster_environment: Who this process is, as an object or by name.
        checkpoint_io: How checkpoints are written, as an object or by name.
        precision_plugin: The dtype policy, as an object or by name.
        debug: Have torch_xla say of each graph why it was compiled and run (``PT_XLA_DEBUG=1``, to standard error),
            wait at the end of each step so that an error shows where it is made, and log operations that XLA left to
            the host and steps that were compiled anew.
    """

    name = "xla"
    uses_process_group: ClassVar[bool] = False

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        cluster_environment: ClusterEnvironment | str | None = None,
        checkpoint_io: CheckpointIO | str | None = None,
        precision_plugin: Precision | str | None = None,
        *,
        debug: bool = False,
    ) -> None:
        super().__init__(accelerator, cluster_environment, checkpoint_io, precision_plugin)
        self.launcher = "xla"
        self.debug = debug
        self._checks: StepChecks | None = None
        self._modules: list[nn.Module] = []
        """The modules whose gradients are averaged."""
        self._unsynced: list[nn.Module] = []
        """Those of them that are within :meth:`no_sync`."""

    # -- who and where -------------------------------------------------------------------------------------------

    def connect(self, *, parallel_devices: Sequence[torch.device], **parts: Any) -> None:
        """As in the base class.

        Raises:
            ConfigurationError: The devices are more than one and not all there are; or a launcher other than
                torch_xla's started this process.
        """
        super().connect(parallel_devices=parallel_devices, **parts)
        environment = self.cluster_environment
        if environment.creates_processes_externally and not isinstance(environment, XLAEnvironment):
            raise ConfigurationError(
                f"strategy={self.name!r}: cluster environment {environment.name!r} says that it started this process, "
                "but here torch_xla starts them. Valid: the script once on each machine, by itself."
            )
        if len(parallel_devices) > 1:
            require_all(self.name, parallel_devices, self.accelerator)

    @property
    def root_device(self) -> torch.device:
        """The device that this process works on; in one that torch_xla started, what torch_xla gave it."""
        if isinstance(self.cluster_environment, XLAEnvironment):
            import torch_xla

            device: torch.device = torch_xla.device()
            return device
        return super().root_device

    # -- life ----------------------------------------------------------------------------------------------------

    def launch(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function`` in every process of the run; see :meth:`core.Strategy.launch`."""
        if self.cluster_environment.creates_processes_externally or self.world_size == 1:
            return function(*args, **kwargs)
        with self._debugging():  # processes that are started see it when they import torch_xla
            result: T = launch(self, function, args, kwargs)
        return result

    def setup_environment(self) -> None:
        """As in the base class."""
        super().setup_environment()
        self._checks = StepChecks() if self.debug else None

    def init_dist_connection(self) -> None:
        """Nothing to join: the runtime has connected the devices."""

    def teardown(self, failed: bool = False) -> None:
        """As in the base class."""
        self._modules.clear()
        self._unsynced.clear()
        self._checks = None
        super().teardown(failed)

    # -- modules and the step ------------------------------------------------------------------------------------

    def mark_step(self) -> None:
        """Run what was gathered; under ``debug`` wait for it, and check what it took."""
        if self._checks is None:
            super().mark_step()
            return
        import torch_xla

        with self._debugging():
            torch_xla.sync(wait=True)
        self._checks.look()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Converted and moved, parameters and buffers as rank 0 has them."""
        module = super().setup_module(module)
        if self.world_size > 1:
            import torch_xla.core.xla_model as xm

            xm.broadcast_master_param(module)
            self._modules.append(module)
        return module

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients, and average those of the modules that are not within :meth:`no_sync`."""
        import torch_xla.core.xla_model as xm

        super().backward(loss, *args, **kwargs)
        unsynced = {id(module) for module in self._unsynced}
        for module in self._modules:
            gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
            if gradients and id(module) not in unsynced:
                xm.all_reduce(xm.REDUCE_SUM, gradients, scale=1 / self.world_size)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Backward within leaves the gradients of ``module`` as they are in this process."""
        return self._left_unsynced(module)

    @contextmanager
    def _left_unsynced(self, module: nn.Module) -> Iterator[None]:
        self._unsynced.append(module)
        try:
            yield
        finally:
            self._unsynced.pop()

    @contextmanager
    def _debugging(self) -> Iterator[None]:
        """Within, torch_xla's own variable says that it is to debug, if so."""
        before = os.environ.get(_DEBUG)
        if self.debug:
            os.environ[_DEBUG] = "1"
        try:
            yield
        finally:
            if self.debug and before is None:
                del os.environ[_DEBUG]

    # -- collectives ---------------------------------------------------------------------------------------------

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """Combined over all processes; a mean of whole numbers is a float32 tensor."""
        import torch_xla.core.xla_model as xm

        self.check_reduction(reduction)
        own = tensor.detach().to(self.root_device)
        is_mean = reduction == "mean"
        if is_mean and not (own.is_floating_point() or own.is_complex()):
            own = own.to(torch.float32)
        result: Any = xm.all_reduce(getattr(xm, _OPERATIONS[reduction]), own.clone())
        combined: Tensor = result / self.world_size if is_mean else result
        return combined

    def broadcast(self, obj: T, src: int = 0) -> T:
        """As process ``src`` has it, tensors on the CPU."""
        return self.all_gather_object(obj)[src]

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process is here."""
        if self.world_size > 1:
            import torch_xla.core.xla_model as xm

            xm.rendezvous(name or "barrier")

    def all_gather_object(self, obj: T) -> list[T]:
        """By rank, tensors on the CPU."""
        if self.world_size == 1:  # a rendezvous, however small, ends the step
            return [on_host(obj)]
        import torch_xla.core.xla_model as xm

        payloads = xm.rendezvous("all_gather_object", pickle.dumps(on_host(obj)))
        return [pickle.loads(payload) for payload in payloads]

    def _all_gather_list(self, tensor: Tensor) -> list[Tensor]:
        import torch_xla.core.xla_model as xm

        return list(xm.all_gather(tensor.unsqueeze(0), dim=0))
