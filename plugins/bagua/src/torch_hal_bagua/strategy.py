"""The strategy: one of Bagua's algorithms under torch-hal's front ends."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from core.accelerators.base import Accelerator
from core.checkpoints.base import CheckpointIO
from core.environments.base import ClusterEnvironment
from core.errors import CheckpointError, ConfigurationError, WrongTypeError
from core.precisions.base import Precision
from core.strategies import DDPStrategy
from torch_hal_bagua.algorithms import create_algorithm
from torch_hal_bagua.algorithms.base import Connection, GradientBucket, Replica, WeightAlgorithm
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
    """Data parallel training in which the replicas are kept in step by one of Bagua's algorithms.

    Source: Gan et al., BAGUA: Scaling up Distributed Learning with System Relaxations, PVLDB 15(4), 2022.

    Args:
        algorithm: ``"gradient_allreduce"``, ``"bytegrad"``, ``"decentralized"``, ``"low_precision_decentralized"``,
            ``"async"`` or ``"qadam"``.
        accelerator: As in :class:`core.strategies.DDPStrategy`.
        cluster_environment: As there.
        checkpoint_io: As there.
        precision_plugin: As there.
        bucket_cap_mb: MiB of gradients or weights that are sent at once.
        process_group_backend: As there.
        timeout: As there.
        start_method: As there.
        **options: Those of the algorithm; where it works on gradients, also those of ``DistributedDataParallel``.

    Raises:
        ConfigurationError: An algorithm, option or value is unknown or out of its range.
        WrongTypeError: A value is of the wrong type.
    """

    def __init__(
        self,
        algorithm: str = "gradient_allreduce",
        accelerator: Accelerator | str | None = None,
        cluster_environment: ClusterEnvironment | str | None = None,
        checkpoint_io: CheckpointIO | str | None = None,
        precision_plugin: Precision | str | None = None,
        *,
        bucket_cap_mb: float = 10,
        process_group_backend: str | None = None,
        timeout: timedelta = timedelta(minutes=30),
        start_method: str = "script",
        **options: Any,
    ) -> None:
        self.algorithm, wrapper_arguments = create_algorithm(algorithm, options, _WRAPPER_ARGUMENTS)
        self.bucket_cap_mb = _size("bucket_cap_mb", bucket_cap_mb)
        super().__init__(
            accelerator,
            cluster_environment,
            checkpoint_io,
            precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
            start_method=start_method,
            bucket_cap_mb=bucket_cap_mb,
            **wrapper_arguments,
        )
        self.precisions = self.algorithm.precisions  # each algorithm has its own
        self.trains_as_one = not isinstance(self.algorithm, WeightAlgorithm)
        self._threads: CommunicationThreads | None = None
        self._replicas: dict[nn.Module, Replica] = {}
        self._replicas_of: dict[Optimizer, list[Replica]] = {}
        self._watched = ExitStack()
        self._restored: dict[Replica, dict[str, Any]] = {}
        """What was read back since the last step of training."""

    # -- life ----------------------------------------------------------------------------------------------------

    def connect(self, **parts: Any) -> None:
        """As in the base class; a number of processes or machines that the algorithm cannot run on is refused."""
        super().connect(**parts)
        self.algorithm.check(self._layout())

    def _layout(self) -> Layout:
        environment = self.cluster_environment
        return Layout(environment.global_rank, environment.world_size, environment.local_world_size)

    def setup_environment(self) -> None:
        """As in the base class, and the algorithm's own process groups and thread."""
        super().setup_environment()
        if self._group is not None:
            self._group.end_at_leave(self._end)
        layout = self._layout()
        communicators = [Communicator(layout, self.algorithm.hierarchical) for _ in range(1 + self.algorithm.threads)]
        self._threads = CommunicationThreads(self.root_device, communicators[1:])
        self.algorithm.connect(
            Connection(self.root_device, layout, communicators[0], self._threads, self.bucket_cap_mb)
        )

    def teardown(self, failed: bool = False) -> None:
        """End the algorithm's threads, by agreement with the other processes, and leave; see the base class."""
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
                replicas.clear()  # prepared optimizers hold them, and step plainly from now on
            self._replicas_of.clear()
            self._restored.clear()
            threads, self._threads = self._threads, None
            if threads is not None:
                threads.close(failed)
            self.algorithm.disconnect()

    # -- modules, optimizers and the step ------------------------------------------------------------------------

    def configure_ddp(self) -> None:
        """Wrap the module where the algorithm works on gradients, and follow its weights where it works on those."""
        module = self.model
        if module in self._replicas:
            return
        if self.algorithm.wraps_module:
            if self.algorithm.reduces_itself:
                wrapped = FixedBuckets(module, device_ids=self.ddp_device_ids(), **self.ddp_kwargs)
                # A lambda: torch reads annotations of hooks and refuses those that are strings.
                wrapped.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))
                self.model = wrapped
            else:
                super().configure_ddp()
        else:
            _broadcast_from_rank_0(module)
        replica = self.algorithm.replica(module, self.model)
        if replica is not None:
            self._replicas[module] = replica

    def _reduce(self, bucket: GradBucket) -> Future[Tensor]:
        assert self._threads is not None
        ready = GradientBucket(bucket)
        reduced = self._threads.submit(partial(self.algorithm.reduce, ready), ready.values)
        # Raised in a callback, an error reaches the backward pass; set on the future itself, it would be a value there.
        return reduced.then(lambda done: done.value())

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """As in the base class, with rank 0's state in every process.

        Raises:
            ConfigurationError: The algorithm cannot work with one of them.
        """
        ready = super().setup_optimizers(optimizers)
        self.algorithm.take_optimizers(ready)
        for optimizer in ready:
            state = self.broadcast(optimizer.state_dict() if self.is_global_zero and optimizer.state else None)
            if state is not None and not self.is_global_zero:
                optimizer.load_state_dict(state)
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
                    f"algorithm={self.algorithm.name!r}: two optimizers share a module, whose weights are exchanged "
                    "once a step. Valid: one optimizer for each module, with parameter groups where need be."
                )

    def _call_around_forward(self, replica: Replica) -> None:
        if replica.acts_in("before_forward") or replica.acts_in("after_forward"):
            after = replica.after_forward if replica.acts_in("after_forward") else None
            self._watched.callback(call_around_forward(replica.module, replica.before_forward, after))

    def steps_plainly(self) -> bool:
        """As in the base class; not where the algorithm acts around the step."""
        return not self._replicas and not self.precision.acts_in("optimizer_step")

    def bound_optimizer_step(self, optimizer: Optimizer) -> Callable[[], Any]:
        """As in the base class, with what the algorithm does before and after."""
        if not self._replicas_of.get(optimizer) or self.precision.acts_in("optimizer_step"):
            return super().bound_optimizer_step(optimizer)
        return self._full_step(optimizer)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """As in the base class, with what the algorithm does before and after.

        Raises:
            ConfigurationError: A closure is given, and weights would change between its calls.
        """
        apply = partial(super().optimizer_step, optimizer, closure)
        if not self._replicas_of.get(optimizer):
            return apply()
        if closure is not None:
            raise ConfigurationError(
                f"algorithm={self.algorithm.name!r} with an optimizer closure: weights are exchanged once a step, and "
                "a closure may run several times. Valid: an optimizer that takes none."
            )
        return self._full_step(optimizer)(apply)

    def _full_step(self, optimizer: Optimizer) -> Callable[..., Any]:
        """One function for the whole step, by ``optimizer`` itself unless it is given what applies the gradients."""
        replicas, restored = self._replicas_of[optimizer], self._restored

        def step(apply: Callable[[], Any] | None = None) -> Any:
            restored.clear()
            for replica in replicas:
                replica.before_step()
            result = optimizer.step() if apply is None else apply()
            for replica in replicas:
                replica.after_step()
            return result

        return step

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """As in the base class: rank 0's weights, where those of the processes differ."""
        replica = self._replica_with(module)
        if replica is None:
            return super().module_state(module)
        with replica.hold():
            return {name: _copied(value) for name, value in super().module_state(module).items()}

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """As in the base class; the processes begin alike, unless :meth:`load_optimizer_state` tells them apart."""
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
        """The replica that ``module`` is, or is a part of."""
        for replica in self._replicas.values():
            if any(part is module for part in replica.module.modules()):
                return replica
        return None

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As in the base class; where the processes' weights differ, with what each of them needs to go on."""
        state = super().optimizer_state(optimizer)
        replicas = self._replicas_of.get(optimizer, [])
        if not replicas:
            return state
        own = process_state(None if self.is_global_zero else state, replicas)  # rank 0's is there already
        return {**state, STATE_KEY: {"algorithm": self.algorithm.name, "processes": gather_states(own)}}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """As in the base class; a state of another algorithm or strategy makes all processes begin alike.

        Raises:
            CheckpointError: It was written by another number of processes.
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
                f"state of algorithm {self.algorithm.name!r}: written by {len(saved['processes'])} process(es), each "
                f"with weights of its own, and this run has {self.world_size}. Valid: the same number."
            )
        own = saved["processes"][self.global_rank]
        super().load_optimizer_state(optimizer, own["optimizer"] or plain)
        for replica, state_of_replica in zip(replicas, own["replicas"], strict=True):
            restore_replica(replica, state_of_replica)
            self._restored[replica] = state_of_replica


def _broadcast_from_rank_0(module: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, 0)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _size(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{name}={value!r}: expected a number of MiB above 0.")
    if not 0 < value < math.inf:
        raise ConfigurationError(f"{name}={value!r}: expected a number of MiB above 0.")
    return value
