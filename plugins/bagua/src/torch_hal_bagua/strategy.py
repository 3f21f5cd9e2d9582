"""The strategy: one of Bagua's algorithms under torch-hal's front ends."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torch_hal.errors import CheckpointError, ConfigurationError, WrongTypeError
from torch_hal.strategies import DDPStrategy, ProcessGroupParts
from torch_hal_bagua.algorithms import OPTIONS, create_algorithm
from torch_hal_bagua.algorithms.base import Connection, GradientBucket, Replica, WeightAlgorithm
from torch_hal_bagua.algorithms.gradient_allreduce import GradientAllReduce
from torch_hal_bagua.around import call_around_forward
from torch_hal_bagua.communication import Communicator, Layout
from torch_hal_bagua.state import STATE_KEY, gather_states, process_state, restore_replica
from torch_hal_bagua.threads import CommunicationThreads
from torch_hal_bagua.wrapper import FixedBuckets

__all__ = ["BaguaStrategy"]

_WRAPPER_ARGUMENTS = frozenset(inspect.signature(DistributedDataParallel).parameters) - {
    "module",
    "device_ids",
    "output_device",
    "process_group",
    "bucket_cap_mb",
}


class BaguaStrategy(DDPStrategy):
    """Data parallel training in which one of Bagua's algorithms exchanges gradients or weights.

    Source: Gan et al., BAGUA: Scaling up Distributed Learning with System Relaxations, PVLDB 15(4), 2022.

    Args:
        algorithm: ``"gradient_allreduce"``, ``"bytegrad"``, ``"decentralized"``, ``"low_precision_decentralized"``,
            ``"async"`` or ``"qadam"``.
        bucket_cap_mb: The size in MiB of the buckets of gradients or weights that are sent at once.
        **others: Options of the algorithm, arguments of :class:`core.strategies.ProcessGroupStrategy`, and those
            of ``DistributedDataParallel`` if the algorithm works on gradients.

    Raises:
        ConfigurationError: An algorithm or argument is unknown, or a value is out of its range.
        WrongTypeError: A value has the wrong type.
    """

    manual_remedy = "Set algorithm='gradient_allreduce' without options, or use another strategy, such as 'ddp'."
    extra_arguments: ClassVar[Mapping[str, inspect.Parameter]] = OPTIONS

    def __init__(self, algorithm: str = "gradient_allreduce", *, bucket_cap_mb: float = 10, **others: Any) -> None:
        parts = {name: others.pop(name) for name in ProcessGroupParts.__annotations__ if name in others}
        self.algorithm, wrapper_arguments = create_algorithm(algorithm, others, _WRAPPER_ARGUMENTS)
        self.bucket_cap_mb = _size("bucket_cap_mb", bucket_cap_mb)
        super().__init__(bucket_cap_mb=bucket_cap_mb, **parts, **wrapper_arguments)
        self.precisions = self.algorithm.precisions  # each algorithm has its own
        # The others communicate once in each step.
        is_plain = isinstance(self.algorithm, GradientAllReduce) and not self.algorithm.reduces_itself
        self.supports_manual_optimization = is_plain
        if isinstance(self.algorithm, WeightAlgorithm):
            self.keeps_replicas_equal = self.keeps_buffers_equal = False
        self._threads: CommunicationThreads | None = None
        self._replicas: dict[nn.Module, Replica] = {}
        self._replicas_of: dict[Optimizer, list[Replica]] = {}
        self._watched = ExitStack()
        self._restored: dict[Replica, dict[str, Any]] = {}
        """The states that were loaded since the last training step."""

    # -- life ----------------------------------------------------------------------------------------------------

    def connect(self, **parts: Any) -> None:
        """See the base class; refuses a number of processes or machines that the algorithm does not support."""
        super().connect(**parts)
        self.algorithm.check(self._layout())

    def _layout(self) -> Layout:
        environment = self.cluster_environment
        return Layout(environment.global_rank, environment.world_size, environment.local_world_size)

    def setup_environment(self) -> None:
        """See the base class; also create the algorithm's process groups and threads."""
        super().setup_environment()
        self.end_at_leave(self._end)
        layout = self._layout()
        communicators = [Communicator(layout, self.algorithm.hierarchical) for _ in range(1 + self.algorithm.threads)]
        self._threads = CommunicationThreads(self.root_device, communicators[1:])
        self.algorithm.connect(
            Connection(self.root_device, layout, communicators[0], self._threads, self.bucket_cap_mb)
        )

    def teardown(self, failed: bool = False) -> None:
        """End the algorithm's threads, in agreement with the other processes, then as in the base class."""
        try:
            self._end(failed)
        finally:
            super().teardown(failed)

    def _end(self, failed: bool) -> None:
        """End the algorithm's part of the run; idempotent."""
        try:
            self._watched.close()
            for replica in self._replicas.values():
                replica.close(failed)
        finally:
            self._replicas.clear()
            for replicas in self._replicas_of.values():
                replicas.clear()  # prepared optimizers hold them, and take plain steps from now on
            self._replicas_of.clear()
            self._restored.clear()
            threads, self._threads = self._threads, None
            if threads is not None:
                threads.close(failed)
            self.algorithm.disconnect()

    # -- modules, optimizers and the step ------------------------------------------------------------------------

    def configure_ddp(self) -> None:
        """Wrap the module if the algorithm works on gradients; track its weights if it works on weights."""
        module = self.model
        if module in self._replicas:
            return
        if self.algorithm.wraps_module:
            if self.algorithm.reduces_itself:
                self.check_sendable(module)
                wrapped = FixedBuckets(module, device_ids=self.ddp_device_ids(), **self.ddp_kwargs)
                # A lambda: torch checks the annotations of hooks, and refuses strings.
                wrapped.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))
                self.model = wrapped
            else:
                super().configure_ddp()
        else:
            self.broadcast_module(module)
        replica = self.algorithm.replica(module, self.model)
        if replica is not None:
            self._replicas[module] = replica

    def _reduce(self, bucket: GradBucket) -> Future[Tensor]:
        assert self._threads is not None
        ready = GradientBucket(bucket)
        reduced = self._threads.submit(partial(self.algorithm.reduce, ready), ready.values)
        # An error raised in a callback reaches the backward pass; one set on the future itself would be a value there.
        return reduced.then(lambda done: done.value())

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Like the base class, with rank 0's state in every process.

        Raises:
            ConfigurationError: The algorithm does not support one of the optimizers.
        """
        ready = super().setup_optimizers(optimizers)
        self.algorithm.take_optimizers(ready)
        for optimizer in ready:
            self.broadcast_optimizer(optimizer)
            self._bind(optimizer)
        return ready

    def _bind(self, optimizer: Optimizer) -> None:
        for replica in self._replicas.values():
            owned = {id(parameter) for parameter in replica.module.parameters()}
            if all(id(p) not in owned for group in optimizer.param_groups for p in group["params"]):
                continue
            owner = next((one for one, replicas in self._replicas_of.items() if replica in replicas), None)
            if owner is None:
                self._replicas_of.setdefault(optimizer, []).append(replica)
                self._call_around_forward(replica)
                replica.start()
            elif owner is not optimizer:
                raise ConfigurationError(
                    f"algorithm={self.algorithm.name!r}: two optimizers share a module, but its weights are exchanged "
                    "once per step. Use one optimizer for each module, with several parameter groups."
                )

    def _call_around_forward(self, replica: Replica) -> None:
        if replica.overrides("before_forward") or replica.overrides("after_forward"):
            after = replica.after_forward if replica.overrides("after_forward") else None
            self._watched.callback(call_around_forward(replica.module, replica.before_forward, after))

    def uses_native_step(self) -> bool:
        """See the base class; ``False`` if the algorithm acts before or after the step."""
        return not self._replicas and not self.precision.overrides("optimizer_step")

    def make_optimizer_step(self, optimizer: Optimizer) -> Callable[..., Any]:
        """Like the base class, with the algorithm's actions before and after the step."""
        if not self._replicas_of.get(optimizer) or self.precision.overrides("optimizer_step"):
            return super().make_optimizer_step(optimizer)
        # optimizer.step is looked up at each step: a scheduler may replace it.
        return self._full_step(optimizer, lambda: optimizer.step())

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Like the base class, with the algorithm's actions before and after the step.

        Raises:
            ConfigurationError: A closure is given, and weights would change between its calls.
        """
        if not self._replicas_of.get(optimizer):
            return super().optimizer_step(optimizer, closure)
        return self._full_step(optimizer, partial(super().optimizer_step, optimizer))(closure)

    def _full_step(self, optimizer: Optimizer, apply: Callable[[], Any]) -> Callable[..., Any]:
        """``step(closure=None)``: ``apply``, which applies the gradients, and the algorithm's actions around it."""
        replicas, restored = self._replicas_of[optimizer], self._restored

        def step(closure: Callable[[], Any] | None = None) -> Any:
            if closure is not None:
                raise ConfigurationError(
                    f"algorithm={self.algorithm.name!r}: step was given a closure, which may run several times, but "
                    "weights are exchanged once a step. Call step() without it."
                )
            restored.clear()
            for replica in replicas:
                replica.before_step()
            result = apply()
            for replica in replicas:
                replica.after_step()
            return result

        return step

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """See the base class: rank 0's weights, if those of the processes differ."""
        replica = self._replica_with(module)
        if replica is None:
            return super().module_state(module)
        with replica.hold():
            return {name: _copied(value) for name, value in super().module_state(module).items()}

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """See the base class; all processes get the same weights, unless :meth:`load_optimizer_state` has others."""
        replica = self._replica_with(module)
        if replica is None:
            super().load_module_state(module, state)
            return
        with replica.hold():
            super().load_module_state(module, state)
            replica.restart()
        if replica in self._restored:
            restore_replica(replica, self._restored[replica])

    def _replica_with(self, module: nn.Module) -> Replica | None:
        """The replica of ``module``, or of the module that it is a submodule of."""
        for replica in self._replicas.values():
            if any(part is module for part in replica.module.modules()):
                return replica
        return None

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """See the base class; if the processes' weights differ, with the state of every process."""
        state = super().optimizer_state(optimizer)
        replicas = self._replicas_of.get(optimizer, [])
        if not replicas:
            return state
        own = process_state(None if self.is_global_zero else state, replicas)  # rank 0's is in ``state``
        return {**state, STATE_KEY: {"algorithm": self.algorithm.name, "processes": gather_states(own)}}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """See the base class; from a state of another algorithm or strategy all processes start with equal weights.

        Raises:
            CheckpointError: Another number of processes wrote the state.
        """
        plain = {key: value for key, value in state.items() if key != STATE_KEY}
        saved: Mapping[str, Any] | None = state.get(STATE_KEY)
        replicas = self._replicas_of.get(optimizer, [])
        if saved is None or saved["algorithm"] != self.algorithm.name:
            super().load_optimizer_state(optimizer, plain)
            for replica in replicas:
                with replica.hold():
                    replica.restart()
                    self._restored.pop(replica, None)
            return
        if len(saved["processes"]) != self.world_size:
            raise CheckpointError(
                f"the state of algorithm {self.algorithm.name!r} was written by {len(saved['processes'])} process(es) "
                f"with different weights, but this run has {self.world_size}. Use the same number of processes."
            )
        own = saved["processes"][self.global_rank]
        super().load_optimizer_state(optimizer, own["optimizer"] or plain)
        for replica, state_of_replica in zip(replicas, own["replicas"], strict=True):
            restore_replica(replica, state_of_replica)
            self._restored[replica] = state_of_replica


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _size(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{name}={value!r}: must be a positive number of MiB.")
    if not 0 < value < math.inf:
        raise ConfigurationError(f"{name}={value!r}: must be a positive, finite number of MiB.")
    return value
