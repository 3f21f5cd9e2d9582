"""One process with a replica per device, started by torch_xla."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor, nn

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import ParallelStrategy, StrategyParts
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
"""torch_xla's names of reductions."""


class XLAStrategy(MarksSteps, ParallelStrategy):
    """One process with a replica of the module per device of the machine; gradients are averaged after backward.

    ``torch_xla.launch`` starts the processes, and XLA's collectives connect them: there is no process group. It
    runs a function in each, so put your own loop into a function: ``runtime.launch(train)``.

    Args:
        debug: Make torch_xla write to standard error why it compiled and ran each graph (``PT_XLA_DEBUG=1``), wait at
            the end of each step so that an error shows in its step, and log operations that ran on the host and steps
            that were compiled again.
        **parts: As in :class:`core.Strategy`.
    """

    name = "xla"
    keeps_buffers_equal = False

    def __init__(self, *, debug: bool = False, **parts: Unpack[StrategyParts]) -> None:
        super().__init__(**parts)
        self.launcher = "xla"
        self.debug = debug
        self._checks: StepChecks | None = None
        self._modules: list[nn.Module] = []
        """The modules whose gradients are averaged."""
        self._unsynced: list[nn.Module] = []
        """Those of them that are in :meth:`no_sync`."""

    # -- ranks and devices----------------------------------------------------------------------------------------

    def launcher_for(self, processes_per_node: int, num_nodes: int) -> str | None:
        """``"xla"``, also for one process on each of several machines; see :meth:`core.Strategy.launcher_for`."""
        return None if processes_per_node * num_nodes == 1 else self.launcher

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            ConfigurationError: More than one, but not all devices are requested, or another launcher started this
                process.
        """
        super().connect(**parts)
        environment = self.cluster_environment
        if environment.creates_processes_externally and not isinstance(environment, XLAEnvironment):
            raise ConfigurationError(
                f"strategy={self.name!r}: cluster environment {environment.name!r} started this process, but torch_xla "
                "has to start the processes. Start the script once on each machine, without a launcher."
            )
        if len(self.parallel_devices) > 1:
            require_all(self.name, self.parallel_devices, self.accelerator)

    @property
    def root_device(self) -> torch.device:
        """The device of this process; torch_xla assigns it in processes that it started."""
        if isinstance(self.cluster_environment, XLAEnvironment):
            import torch_xla

            device: torch.device = torch_xla.device()
            return device
        return super().root_device

    # -- life ----------------------------------------------------------------------------------------------------

    def launch(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function`` in every process of the run; see :meth:`core.Strategy.launch`."""
        if self.plan.launcher is None or self.cluster_environment.creates_processes_externally:
            return function(*args, **kwargs)
        with self._debugging():  # started processes read it when they import torch_xla
            result: T = launch(self, function, args, kwargs)
        return result

    def setup_environment(self) -> None:
        """See the base class."""
        super().setup_environment()
        self._checks = StepChecks() if self.debug else None

    def init_dist_connection(self) -> None:
        """Do nothing: the runtime has connected the devices."""

    def teardown(self, failed: bool = False) -> None:
        """See the base class."""
        self._modules.clear()
        self._unsynced.clear()
        self._checks = None
        super().teardown(failed)

    # -- modules and the step ------------------------------------------------------------------------------------

    def mark_step(self) -> None:
        """Run the collected operations; with ``debug`` wait for them and check the step."""
        if self._checks is None:
            super().mark_step()
            return
        import torch_xla

        with self._debugging():
            torch_xla.sync(wait=True)
        self._checks.look()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Convert and move the module, and broadcast parameters and buffers from rank 0."""
        module = super().setup_module(module)
        if self.world_size > 1:
            self.broadcast_module(module)
            self._modules.append(module)
        return module

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients, and average those of modules that are not in :meth:`no_sync`."""
        import torch_xla.core.xla_model as xm

        super().backward(loss, *args, **kwargs)
        unsynced = {id(module) for module in self._unsynced}
        for module in self._modules:
            gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
            if gradients and id(module) not in unsynced:
                xm.all_reduce(xm.REDUCE_SUM, gradients, scale=1 / self.world_size)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which backward does not average the gradients of ``module``."""
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
        """Set torch_xla's debug variable in the context, if ``debug`` is set."""
        before = os.environ.get(_DEBUG)
        if self.debug:
            os.environ[_DEBUG] = "1"
        try:
            yield
        finally:
            if self.debug and before is None:
                del os.environ[_DEBUG]

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """Reduce with XLA's collective, if it has the reduction."""
        import torch_xla.core.xla_model as xm

        if reduction not in _OPERATIONS:
            return super().all_reduce(tensor, reduction)
        result: Any = xm.all_reduce(getattr(xm, _OPERATIONS[reduction]), tensor)
        combined: Tensor = result
        return combined

    def broadcast_module(self, module: nn.Module, src: int = 0) -> None:
        """Broadcast from rank 0 with XLA's collective, all tensors at once."""
        if src != 0:
            super().broadcast_module(module, src)
            return
        import torch_xla.core.xla_model as xm

        xm.broadcast_master_param(module)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            import torch_xla.core.xla_model as xm

            xm.rendezvous(name or "barrier")

    def all_gather_object(self, obj: T) -> list[T]:
        """Return the objects of all processes by rank, with tensors on the CPU."""
        if self.world_size == 1:  # a rendezvous, however small, ends the step
            return [on_host(obj)]
        import torch_xla.core.xla_model as xm

        payloads = xm.rendezvous("all_gather_object", pickle.dumps(on_host(obj)))
        return [pickle.loads(payload) for payload in payloads]

    def all_gather_list(self, tensor: Tensor) -> list[Tensor]:
        """Gather with XLA's collective."""
        import torch_xla.core.xla_model as xm

        return list(xm.all_gather(tensor.unsqueeze(0), dim=0))
