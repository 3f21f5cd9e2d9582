"""Horovod: a replica in each process, gradients averaged by Horovod's engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_hal.errors import ConfigurationError, LaunchError, quoted
from torch_hal.strategies import (
    ManualGradients,
    ParallelStrategy,
    StrategyParts,
    TrainingStep,
    TrainingStepOptions,
    refuse_unfrozen,
)
from torch_hal_horovod.environment import HorovodEnvironment
from torch_hal_horovod.library import import_horovod
from torch_hal_horovod.manual import ReducedGradients
from torch_hal_horovod.options import HorovodOptions
from torch_hal_horovod.reducer import GradientReducer
from torch_hal_horovod.steps import AdasumStep, ScaledLearningRate

__all__ = ["HorovodStrategy"]

T = TypeVar("T")

_REDUCED = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
"""What Horovod's allreduce takes."""

_OPERATIONS = {"mean": "Sum", "sum": "Sum", "min": "Min", "max": "Max", "product": "Product"}
"""Horovod's names of reductions."""


class HorovodStrategy(ParallelStrategy):
    """A replica of the module in each process; Horovod averages gradients while backward computes them.

    Horovod starts the processes (``horovodrun``, ``horovod.run``, its elastic driver, or mpirun) and connects them;
    there is no process group. A single process needs no launcher.

    Source: Sergeev and Del Balso, Horovod, 2018; ``horovod.torch.DistributedOptimizer``.

    Args:
        compression: How gradients are sent: ``"none"`` for unchanged, or ``"fp16"``.
        backward_passes_per_step: Backward passes of your own loop whose gradients are summed before they are reduced.
            With the Trainer, use ``accumulate_grad_batches`` instead.
        op: ``"average"`` or ``"sum"`` of gradients over processes; or ``"adasum"``, which combines the changes of
            each process's own step, and needs Horovod built with MPI.
        gradient_predivide_factor: Part of the division by the number of processes that is done before the sum; only for
            the average.
        sparse_as_dense: Whether sparse gradients are reduced as dense ones.
        scale_learning_rate: Whether steps use the learning rate times the number of processes. The optimizer, its
            schedulers and checkpoints keep the rate of one process.
        **parts: As in :class:`core.Strategy`.

    Raises:
        ConfigurationError: An argument is unknown, has an invalid value, or contradicts another.
    """

    name = "horovod"
    keeps_buffers_equal = False
    equal_buffers_in_evaluation = True
    launch_command: ClassVar[str] = "horovodrun -np N --gloo python script.py"
    # Horovod reduces no bfloat16 gradients.
    precisions = ("32-true", "64-true", "16-true", "16-mixed", "bf16-mixed")

    _stopped: ClassVar[bool] = False
    """Whether a run that failed has stopped Horovod in this process."""

    def __init__(
        self,
        *,
        compression: str = "none",
        backward_passes_per_step: int = 1,
        op: str = "average",
        gradient_predivide_factor: float = 1.0,
        sparse_as_dense: bool = False,
        scale_learning_rate: bool = False,
        **parts: Unpack[StrategyParts],
    ) -> None:
        super().__init__(**parts)
        self.options = HorovodOptions(
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            sparse_as_dense=sparse_as_dense,
            scale_learning_rate=scale_learning_rate,
        )
        self._backward_passes = backward_passes_per_step
        self._device: torch.device | None = None
        self._is_live = False
        self._reducers: list[GradientReducer] = []
        self._frozen_checks: dict[nn.Module, RemovableHandle] = {}
        self._held: list[GradientReducer] = []
        """Those of them that are in :meth:`no_sync`."""
        self._adasum: dict[Optimizer, AdasumStep] = {}
        self._optimizers: list[Optimizer] = []
        self._step_hooks = ExitStack()

    # -- who and where -------------------------------------------------------------------------------------------

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            ConfigurationError: Another launcher than Horovod's started the processes; or Adasum does not support the
                controller, the number of processes or the precision.
            BackendError: Horovod cannot be imported.
        """
        super().connect(**parts)
        environment = self.cluster_environment
        processes = environment.world_size
        if processes > 1 and not isinstance(environment, HorovodEnvironment):
            raise ConfigurationError(
                f"strategy={self.name!r}: cluster environment {environment.name!r} gives {processes} processes, but "
                f"Horovod connects only those that its own launcher starts. Valid: horovodrun -np {processes} --gloo "
                "python script.py, horovod.run(function, num_proc=...), or strategy='ddp'."
            )
        if self.options.op == "adasum" and processes > 1:
            assert isinstance(environment, HorovodEnvironment)
            self._check_adasum(environment)
        import_horovod()

    def _check_adasum(self, environment: HorovodEnvironment) -> None:
        fault = ""
        if not environment.uses_mpi:
            fault = "Horovod has it over MPI only, and these processes meet by gloo. Valid: mpirun, or op='average'"
        elif environment.world_size & (environment.world_size - 1):
            fault = f"{environment.world_size} processes. Valid: a power of 2, or op='average'"
        elif self.precision.scales_loss:
            fault = f"precision={self.precision.name!r}, which scales the loss. Valid: another, or op='average'"
        elif environment.is_elastic:
            fault = "the elastic driver has no MPI. Valid: op='average'"
        if fault:
            raise ConfigurationError(f"op='adasum': {fault}.")

    @property
    def world_size(self) -> int:
        """The current number of processes; it can change under the elastic driver."""
        return int(import_horovod().size()) if self._is_live else super().world_size

    @property
    def global_rank(self) -> int:
        """This process's current number among all, from 0; it can change under the elastic driver."""
        return int(import_horovod().rank()) if self._is_live else super().global_rank

    @property
    def local_rank(self) -> int:
        """This process's current number on its machine, from 0; it can change under the elastic driver."""
        return int(import_horovod().local_rank()) if self._is_live else super().local_rank

    @property
    def root_device(self) -> torch.device:
        """The device that this process works on; it stays the same if the elastic driver assigns new ranks."""
        return super().root_device if self._device is None else self._device

    @property
    def is_elastic(self) -> bool:
        """Whether processes may join and leave: then ``horovod.torch.elastic`` broadcasts their common state."""
        return isinstance(self.cluster_environment, HorovodEnvironment) and self.cluster_environment.is_elastic

    # -- life ----------------------------------------------------------------------------------------------------

    def init_dist_connection(self) -> None:
        """Start Horovod, which connects the processes; it stays started for later runs.

        Raises:
            LaunchError: Horovod cannot start, has been stopped by a run that failed in this process, or reports other
                ranks than its launcher.
        """
        hvd, environment = import_horovod(), self.cluster_environment
        meets_by_gloo = isinstance(environment, HorovodEnvironment) and not environment.uses_mpi
        if HorovodStrategy._stopped and meets_by_gloo and environment.world_size > 1:
            raise LaunchError(
                f"strategy={self.name!r}: a run before this one failed in this process, and stopped Horovod so that no "
                "process waits for this one. Horovod over gloo does not start again reliably: its launcher may still "
                "give the addresses of before. Start the script again, or let Horovod's elastic driver restart it "
                "(horovodrun --min-np)."
            )
        self._device = self.root_device
        try:
            if not hvd.is_initialized():
                hvd.init()
        except (RuntimeError, ValueError) as error:
            raise LaunchError(f"strategy={self.name!r}: Horovod could not start: {error}") from error
        expected, found = (environment.world_size, environment.global_rank), (hvd.size(), hvd.rank())
        if found != expected and not self.is_elastic:
            hvd.shutdown()
            raise LaunchError(
                f"strategy={self.name!r}: the environment says rank {expected[1]} of {expected[0]}, but Horovod rank "
                f"{found[1]} of {found[0]}. Under mpirun, set HOROVOD_CONTROLLER=mpi; use a Horovod built for its "
                "launcher (MPI for mpirun, gloo for horovodrun --gloo)."
            )
        self._is_live = True

    def teardown(self, failed: bool = False) -> None:
        """Remove all hooks. Horovod stays started until the process ends or a run fails.

        Under the elastic driver, ``horovod.torch.elastic`` starts and stops it.
        """
        for reducer in self._reducers:
            reducer.release()
        self._step_hooks.close()
        for part in (self._reducers, self._held, self._adasum, self._optimizers, self._frozen_checks):
            part.clear()
        if self._is_live and failed and not self.is_elastic:
            import_horovod().shutdown()  # so that the others do not wait for this process
            HorovodStrategy._stopped = True
        self._is_live = False
        super().teardown(failed)
        self._device = None

    # -- modules and optimizers ----------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Converted and moved, with rank 0's parameters and buffers; its gradients will be reduced.

        Raises:
            ConfigurationError: A parameter is in a memory format that Horovod does not support.
        """
        module = super().setup_module(module)
        scattered = [name for name, parameter in module.named_parameters() if not parameter.is_contiguous()]
        if scattered:
            raise ConfigurationError(
                f"module: parameters {quoted(scattered[:5])} are not contiguous (channels_last, for example), which "
                "Horovod does not support. Call module.to(memory_format=torch.contiguous_format), or use 'ddp'."
            )
        if self.world_size > 1 and not self.is_elastic:
            self.broadcast_module(module)
        if self.options.op != "adasum":
            self._add_reducer(module)
            check = refuse_unfrozen(self.name, module, module) if self.world_size > 1 else None
            if check is not None:
                self._frozen_checks[module] = check
                self._step_hooks.callback(check.remove)
        return module

    def _add_reducer(self, module: nn.Module) -> None:
        trained = {
            f"{len(self._reducers)}.{name}": parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and not any(reducer.covers([parameter]) for reducer in self._reducers)
        }
        if not trained:
            return
        hvd, options = import_horovod(), self.options
        self._reducers.append(
            GradientReducer(
                hvd,
                trained,
                backward_passes=self._backward_passes,
                compression=getattr(hvd.Compression, options.compression),
                gradient_predivide_factor=options.gradient_predivide_factor,
                sparse_as_dense=options.sparse_as_dense,
            )
        )

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The user's own optimizers, with rank 0's state."""
        prepared = super().setup_optimizers(optimizers)
        for optimizer in prepared:
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
                self._set_up_optimizer(optimizer)
        return prepared

    def _set_up_optimizer(self, optimizer: Optimizer) -> None:
        if self.world_size > 1 and not self.is_elastic:
            self.broadcast_optimizer(optimizer)
        if self.options.scale_learning_rate:
            self._step_hooks.callback(ScaledLearningRate(optimizer, lambda: self.world_size).release)
        if self.uses_native_step():
            self._step_hooks.callback(optimizer.register_step_pre_hook(self._finish_before_step).remove)
        if self.options.op == "adasum":
            self._adasum[optimizer] = AdasumStep(optimizer, self.options.compression, len(self._adasum))

    # -- the step ------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar, and reduce them over processes.

        Raises:
            ConfigurationError: Gradients were computed more often than ``backward_passes_per_step`` says.
        """
        if self.options.op == "sum":
            # Gradients are averaged even so: those that are reduced again together with a later pass's keep their value
            # under an average, but would count twice under a sum.
            loss = loss * self.world_size
        try:
            self.precision.backward(loss, *args, **kwargs)
            for reducer in self._reducers:
                reducer.finish_started()
        except BaseException:
            # Reductions in progress belong to a step that will not happen; hvd.elastic restores the state before it.
            for reducer in self._reducers:
                reducer.forget()
            raise

    def uses_native_step(self) -> bool:
        """See the base class; a hook of the optimizer reduces remaining gradients before the step."""
        return self.options.op != "adasum" and not self.precision.overrides("optimizer_step")

    def _finish_before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._finish(optimizer.param_groups)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce remaining gradients, if there were fewer backward passes than usual, and apply them."""
        self._finish(optimizer.param_groups)
        apply = partial(super().optimizer_step, optimizer, closure)
        step = self._adasum.get(optimizer)
        return apply() if step is None or self.world_size == 1 else step.take(apply)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Reduce remaining gradients, then unscale: all processes must agree on whether they are finite."""
        self._finish(optimizer.param_groups)
        super().unscale_gradients(optimizer)

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Reduce remaining gradients, then limit them."""
        chosen = list(parameters)
        self._finish([{"params": chosen}])
        return super().clip_gradients(chosen, clip_value, algorithm, norm_type)

    def _finish(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Reduce remaining gradients of ``groups``, an optimizer's parameter groups."""
        for reducer in self._reducers:
            if reducer.is_pending and any(reducer.covers(group["params"]) for group in groups):
                reducer.finish()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward does not reduce the gradients of ``module``."""
        return self._hold([reducer for reducer in self._reducers if reducer.covers(module.parameters())])

    @contextmanager
    def _hold(self, reducers: list[GradientReducer]) -> Iterator[None]:
        new = [reducer for reducer in reducers if reducer not in self._held]
        for reducer in new:
            reducer.hold()
        self._held += new
        try:
            yield
        finally:
            for reducer in new:
                self._held.remove(reducer)
                reducer.resume()

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """The Trainer's whole step, which itself decides when gradients are reduced.

        Raises:
            ConfigurationError: ``backward_passes_per_step`` contradicts ``accumulate_grad_batches``; or the elastic
                driver started the processes, which needs your own loop.
        """
        given = self.options.backward_passes_per_step
        if given not in (1, options.accumulate):
            raise ConfigurationError(
                f"backward_passes_per_step={given}, but accumulate_grad_batches={options.accumulate}. Valid: the "
                "Trainer's accumulate_grad_batches alone."
            )
        self._refuse_elastic()
        self._backward_passes = 1
        for reducer in self._reducers:
            reducer.backward_passes = 1
            reducer.resume()
        return super().training_step(forward, options)

    def manual_gradients(self, module: nn.Module) -> ManualGradients:
        """Reduced by Horovod after each backward pass of a loop that may call backward any number of times.

        Horovod's hooks are removed: they reduce a gradient after a fixed number of passes.

        Raises:
            ConfigurationError: ``backward_passes_per_step`` is set, or the elastic driver started the processes.
        """
        given = self.options.backward_passes_per_step
        if given != 1:
            raise ConfigurationError(
                f"backward_passes_per_step={given} has no effect with manual optimization, where gradients are reduced "
                "after each manual_backward. Leave it out."
            )
        self._refuse_elastic()
        hooked = [reducer for reducer in self._reducers if reducer.covers(module.parameters())]
        for reducer in hooked:
            reducer.release()
            self._reducers.remove(reducer)
        if hooked and module in self._frozen_checks:
            self._frozen_checks[module].remove()
        if not hooked or self.world_size == 1:  # Adasum combines in the optimizer's step
            return ManualGradients(self.backward, partial(self.no_sync, module))
        return ReducedGradients(self, list(module.parameters()), self.backward, self.options)

    def _refuse_elastic(self) -> None:
        if self.is_elastic:
            raise ConfigurationError(
                f"strategy={self.name!r}: Horovod's elastic driver started this process. It restores earlier states of "
                "training, which the Trainer does not support. Use core.Runtime with horovod.torch.elastic in your own "
                "training loop, or call horovodrun without --min-np."
            )

    # -- collectives ---------------------------------------------------------------------------------------------
    # Each has a name: Horovod matches requests of processes by name, and its default names are counters.

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """By Horovod's allreduce, for the dtypes and reductions that it has."""
        operation = _OPERATIONS.get(reduction)
        if operation is None or tensor.dtype not in _REDUCED or not tensor.numel():
            return super().all_reduce(tensor, reduction)
        hvd = import_horovod()
        result: Tensor = hvd.allreduce(tensor, op=getattr(hvd, operation), name=f"core.reduce.{operation}")
        return result

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Broadcast from rank ``src``."""
        received: T = import_horovod().broadcast_object(obj, src, name="core.broadcast")
        return received

    def broadcast_tensor(self, tensor: Tensor, src: int = 0) -> None:
        """By Horovod's broadcast, as bytes: it does not support all dtypes."""
        dense = tensor.detach().clone(memory_format=torch.contiguous_format)
        if dense.numel():
            import_horovod().broadcast_(dense.view(-1).view(torch.uint8), src, name="core.broadcast_tensor")
            tensor.detach().copy_(dense)

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process has called this."""
        del name
        import_horovod().barrier()

    def all_gather_object(self, obj: T) -> list[T]:
        """By rank."""
        gathered: list[T] = import_horovod().allgather_object(obj, name="core.gather")
        return gathered

    def all_gather_list(self, tensor: Tensor) -> list[Tensor]:
        """By Horovod's allgather, as bytes: it does not support all dtypes."""
        if not tensor.numel():
            return [tensor.clone() for _ in range(self.world_size)]
        own = tensor.reshape(-1).view(torch.uint8)
        gathered = import_horovod().allgather(own, name="core.all_gather").view(self.world_size, -1)
        return [part.view(tensor.dtype).view(tensor.shape) for part in gathered]
