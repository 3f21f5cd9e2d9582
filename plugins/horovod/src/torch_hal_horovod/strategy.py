"""Horovod: a replica in each process, gradients averaged by Horovod's engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core import Accelerator, CheckpointIO, ClusterEnvironment, Precision
from core.errors import ConfigurationError, LaunchError, quoted
from core.nested import map_tensors
from core.strategies import ParallelStrategy
from core.strategies.base import TrainingStep, TrainingStepOptions
from torch_hal_horovod.environment import HorovodEnvironment
from torch_hal_horovod.library import import_horovod
from torch_hal_horovod.options import HorovodOptions
from torch_hal_horovod.reducer import GradientReducer
from torch_hal_horovod.steps import AdasumStep, ScaledLearningRate

__all__ = ["HorovodStrategy"]

T = TypeVar("T")

_REDUCED = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
"""What Horovod's allreduce takes."""

_COMBINE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda stacked: stacked.sum(0),
    "min": lambda stacked: stacked.amin(0),
    "max": lambda stacked: stacked.amax(0),
    "product": lambda stacked: stacked.prod(0),
}


class HorovodStrategy(ParallelStrategy):
    """A replica of the module in each process; Horovod averages gradients while backward computes them.

    Horovod starts the processes (``horovodrun``, ``horovod.run``, its elastic driver, or mpirun) and connects them;
    there is no process group. One process works without any of that.

    Source: Sergeev and Del Balso, Horovod, 2018; ``horovod.torch.DistributedOptimizer``.

    Args:
        accelerator: The hardware, as an object or by name.
        cluster_environment: Who this process is, as an object or by name.
        checkpoint_io: How checkpoints are written, as an object or by name.
        precision_plugin: The dtype policy, as an object or by name.
        compression: What gradients are sent as: ``"none"`` for as they are, or ``"fp16"``.
        backward_passes_per_step: Backward passes in an own loop before gradients, summed up by then, are reduced. With
            the Trainer its own ``accumulate_grad_batches`` says so.
        op: ``"average"`` or ``"sum"`` of gradients over processes; or ``"adasum"``, which combines what each process's
            own step has changed, and needs Horovod built with MPI.
        gradient_predivide_factor: Divides gradients before they are summed up, and by so much less after; only for the
            average.
        sparse_as_dense: Reduce sparse gradients as dense ones.
        scale_learning_rate: Take steps with the learning rate times the number of processes. What the optimizer,
            its schedulers and checkpoints say stays the rate of one process.

    Raises:
        ConfigurationError: An argument is none of the valid ones, or contradicts another.
    """

    name = "horovod"
    uses_process_group: ClassVar[bool] = False
    started_by: ClassVar[str] = "horovodrun -np N --gloo python script.py"
    # Horovod reduces no bfloat16 gradients.
    precisions = ("32-true", "64-true", "16-true", "16-mixed", "bf16-mixed")

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        cluster_environment: ClusterEnvironment | str | None = None,
        checkpoint_io: CheckpointIO | str | None = None,
        precision_plugin: Precision | str | None = None,
        *,
        compression: str = "none",
        backward_passes_per_step: int = 1,
        op: str = "average",
        gradient_predivide_factor: float = 1.0,
        sparse_as_dense: bool = False,
        scale_learning_rate: bool = False,
    ) -> None:
        super().__init__(accelerator, cluster_environment, checkpoint_io, precision_plugin)
        self.launcher = None
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
        self._held: list[GradientReducer] = []
        """Those of them that are within :meth:`no_sync`."""
        self._adasum: dict[Optimizer, AdasumStep] = {}
        self._optimizers: list[Optimizer] = []
        self._step_hooks = ExitStack()

    # -- who and where -------------------------------------------------------------------------------------------

    def connect(self, **parts: Any) -> None:
        """As in the base class.

        Raises:
            ConfigurationError: Something else than Horovod's launchers started the processes; or Adasum with a
                controller, a number of processes or a precision that it does not serve.
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
        """How many processes there are in all, now: under the elastic driver they may become more or fewer."""
        return int(import_horovod().size()) if self._is_live else super().world_size

    @property
    def global_rank(self) -> int:
        """This process's number among all, from 0; likewise."""
        return int(import_horovod().rank()) if self._is_live else super().global_rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine, from 0; likewise."""
        return int(import_horovod().local_rank()) if self._is_live else super().local_rank

    @property
    def root_device(self) -> torch.device:
        """The device that this process works on; it stays where the elastic driver gives out ranks anew."""
        return super().root_device if self._device is None else self._device

    @property
    def is_elastic(self) -> bool:
        """Whether processes may come and go: then ``horovod.torch.elastic`` broadcasts what they are to agree on."""
        return isinstance(self.cluster_environment, HorovodEnvironment) and self.cluster_environment.is_elastic

    # -- life ----------------------------------------------------------------------------------------------------

    def init_dist_connection(self) -> None:
        """Start Horovod, which connects the processes; one run after another finds it started.

        Raises:
            LaunchError: It cannot; or it counts other processes than its launcher said.
        """
        hvd, environment = import_horovod(), self.cluster_environment
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
                f"{found[1]} of {found[0]}. Valid: HOROVOD_CONTROLLER=mpi in the environment under mpirun; a Horovod "
                "built for what started it (MPI for mpirun, gloo for horovodrun --gloo)."
            )
        self._is_live = True

    def teardown(self, failed: bool = False) -> None:
        """Take all hooks away. Horovod stays started until the process ends, unless it fails.

        What it meets by knows no second start: a process that starts again before all others have stopped is sent to
        addresses that are no more, and aborts. Under the elastic driver ``horovod.torch.elastic`` starts and stops it.
        """
        for reducer in self._reducers:
            reducer.release()
        self._step_hooks.close()
        for part in (self._reducers, self._held, self._adasum, self._optimizers):
            part.clear()
        if self._is_live and failed and not self.is_elastic:
            import_horovod().shutdown()  # so that the others do not wait for this process
        self._is_live = False
        super().teardown(failed)
        self._device = None

    # -- modules and optimizers ----------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Converted and moved, parameters and buffers as rank 0 has them; gradients will be reduced.

        Raises:
            ConfigurationError: A parameter is in a memory format that Horovod does not take.
        """
        module = super().setup_module(module)
        scattered = [name for name, parameter in module.named_parameters() if not parameter.is_contiguous()]
        if scattered:
            raise ConfigurationError(
                f"module: parameters {quoted(scattered[:5])} are not contiguous (channels_last, say), which Horovod "
                "does not take. Valid: module.to(memory_format=torch.contiguous_format), or strategy='ddp'."
            )
        if self.world_size > 1 and not self.is_elastic:
            self._broadcast_tensors([*module.named_parameters(), *module.named_buffers()])
        if self.options.op != "adasum":
            self._add_reducer(module)
        return module

    def _broadcast_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        hvd = import_horovod()
        for name, tensor in tensors:
            # As bytes: Horovod knows not all dtypes.
            flat = tensor.detach().reshape(-1).contiguous()
            if flat.numel():
                hvd.broadcast_(flat.view(torch.uint8), 0, name=f"core.parameter.{name}")
                tensor.detach().copy_(flat.view(tensor.shape))

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
        """The user's own, their state as rank 0 has it."""
        prepared = super().setup_optimizers(optimizers)
        for optimizer in prepared:
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
                self._set_up_optimizer(optimizer)
        return prepared

    def _set_up_optimizer(self, optimizer: Optimizer) -> None:
        if self.world_size > 1 and not self.is_elastic:
            state = self.broadcast(map_tensors(Tensor.cpu, optimizer.state_dict()))
            if self.global_rank != 0:
                optimizer.load_state_dict(state)
        if self.options.scale_learning_rate:
            self._step_hooks.callback(ScaledLearningRate(optimizer, lambda: self.world_size).release)
        if self.steps_plainly():
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
            # Averaged all the same, after this: gradients that are reduced once more, with those of a later pass, stay
            # as they are where they are averaged, and would count double where they are summed up.
            loss = loss * self.world_size
        try:
            self.precision.backward(loss, *args, **kwargs)
            for reducer in self._reducers:
                reducer.finish_started()
        except BaseException:
            # What is on its way belongs to a step that will not be; hvd.elastic goes back to before it.
            for reducer in self._reducers:
                reducer.forget()
            raise

    def steps_plainly(self) -> bool:
        """As in the base class: what is left to reduce before a step, a hook of the optimizer's reduces."""
        return self.options.op != "adasum" and not self.precision.acts_in("optimizer_step")

    def _finish_before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._finish(optimizer.param_groups)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients, those too that fewer backward passes gave than reduce them by themselves."""
        self._finish(optimizer.param_groups)
        apply = partial(super().optimizer_step, optimizer, closure)
        step = self._adasum.get(optimizer)
        return apply() if step is None or self.world_size == 1 else step.take(apply)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Reduce what is not reduced, then unscale it: whether a step is finite all processes must see alike."""
        self._finish(optimizer.param_groups)
        super().unscale_gradients(optimizer)

    def clip_parameters(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Reduce what is not reduced, then limit it."""
        chosen = list(parameters)
        self._finish([{"params": chosen}])
        return super().clip_parameters(chosen, clip_value, algorithm, norm_type)

    def _finish(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Reduce what is not reduced of the gradients in ``groups``, as an optimizer has them."""
        for reducer in self._reducers:
            if reducer.is_pending and any(reducer.covers(group["params"]) for group in groups):
                reducer.finish()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Backward within leaves the gradients of ``module`` as they are in this process."""
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
        """The Trainer's whole step, which itself says when gradients are reduced.

        Raises:
            ConfigurationError: ``backward_passes_per_step`` says another number of batches a step; or the elastic
                driver started the processes, which runs a loop of one's own.
        """
        given = self.options.backward_passes_per_step
        if given not in (1, options.accumulate):
            raise ConfigurationError(
                f"backward_passes_per_step={given}, but accumulate_grad_batches={options.accumulate}. Valid: the "
                "Trainer's accumulate_grad_batches alone."
            )
        if self.is_elastic:
            raise ConfigurationError(
                f"strategy={self.name!r}: the elastic driver started this process, and takes back what is done in a "
                "loop of one's own. Valid: core.Runtime with horovod.torch.elastic, or horovodrun without --min-np."
            )
        self._backward_passes = 1
        for reducer in self._reducers:
            reducer.backward_passes = 1
            reducer.resume()
        return super().training_step(forward, options)

    # -- collectives ---------------------------------------------------------------------------------------------
    # Each is named: Horovod matches what processes ask for by name, and its own names count or tell types.

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """Combined over all processes; a mean of whole numbers is a float32 tensor."""
        self.check_reduction(reduction)
        hvd, is_mean = import_horovod(), reduction == "mean"
        own = tensor.detach().to(self.root_device)
        if is_mean and not (own.is_floating_point() or own.is_complex()):
            own = own.to(torch.float32)
        word = "sum" if is_mean else reduction
        if own.dtype in _REDUCED and own.numel():
            operation = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}[word]
            result: Tensor = hvd.allreduce(own.contiguous(), op=operation, name=f"core.reduce.{word}")
        else:
            result = _COMBINE[word](self.all_gather(own)).to(own.dtype)
        return result.div_(self.world_size) if is_mean else result

    def broadcast(self, obj: T, src: int = 0) -> T:
        """As process ``src`` has it."""
        received: T = import_horovod().broadcast_object(obj, src, name="core.broadcast")
        return received

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process is here."""
        del name
        import_horovod().barrier()

    def all_gather_object(self, obj: T) -> list[T]:
        """By rank."""
        gathered: list[T] = import_horovod().allgather_object(obj, name="core.gather")
        return gathered

    def _all_gather_list(self, tensor: Tensor) -> list[Tensor]:
        if not tensor.numel():
            return [tensor.clone() for _ in range(self.world_size)]
        own = tensor.reshape(-1).view(torch.uint8)
        gathered = import_horovod().allgather(own, name="core.all_gather").view(self.world_size, -1)
        return [part.view(tensor.dtype).view(tensor.shape) for part in gathered]
