"""Runtime: the front end for your own loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from core.accelerators.base import Accelerator
from core.checkpoints.base import CheckpointIO
from core.environments.base import ClusterEnvironment
from core.errors import ConfigurationError, LaunchError, WrongTypeError
from core.nested import map_tensors
from core.plan import Plan, Request, assemble, resolve
from core.precisions.base import Precision
from core.runtime.loader import PreparedLoader, prepare_loader
from core.runtime.modules import PreparedModule, needs_forward_context
from core.runtime.optimizers import PreparedOptimizer
from core.runtime.state import restore, run_facts
from core.strategies.base import Strategy

__all__ = ["Runtime"]

T = TypeVar("T")


class Runtime:
    """Hardware, processes, precision and checkpoints for your own training loop.

    ::

        runtime = Runtime(accelerator="gpu", strategy="ddp", devices=2, precision="bf16-mixed")
        model, optimizer, loader = runtime.prepare(model, optimizer, loader)
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    The words are resolved, and refused where they are wrong, on construction; processes start at :meth:`launch`, which
    the first use of anything that needs them calls by itself. Under strategies that run a function in each process
    (``ddp_spawn``, ``ddp_fork``, ``ddp_notebook``) the loop goes into a function: ``runtime.launch(train)`` calls
    ``train(runtime)`` in each.

    Args:
        accelerator: Hardware, by name or as an object; ``"auto"`` takes the best present.
        strategy: Way of distributing, by name or as an object.
        devices: Which devices of each machine; see :mod:`core.accelerators.devices`.
        num_nodes: How many machines.
        precision: Dtype policy, by name or as an object.
        checkpoint_io: Checkpoint format, by name or as an object.
        cluster_environment: Who this process is, by name or as an object.

    Raises:
        CoreError: A word is unknown, of the wrong kind, contradicted, or names what cannot be used here.
    """

    _runs_own_loop: ClassVar[bool] = True
    """Whether the loop is the user's own, which not every strategy serves."""

    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: str | int | list[int] | tuple[int, ...] = "auto",
        num_nodes: str | int = "auto",
        precision: str | int | Precision = "auto",
        checkpoint_io: str | CheckpointIO = "auto",
        cluster_environment: str | ClusterEnvironment = "auto",
    ) -> None:
        request = Request.read(
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            checkpoint_io=checkpoint_io,
            cluster_environment=cluster_environment,
        )
        self.plan: Plan = resolve(request)
        self._strategy = assemble(self.plan)
        if self._runs_own_loop and not self._strategy.serves_own_loop:
            raise ConfigurationError(
                f"strategy={self.plan.strategy.name!r}: it runs whole training steps, and no loop of one's own. Valid: "
                "core.Trainer, or another strategy."
            )
        self._is_live = False
        self._optimizers: WeakKeyDictionary[Optimizer, None] = WeakKeyDictionary()
        """Those that were prepared, in the same order in every process."""

    # -- life ----------------------------------------------------------------------------------------------------

    def launch(self, function: Callable[..., T] | None = None, *args: Any, **kwargs: Any) -> T | None:
        """Start the processes of the run, and call ``function(runtime, *args, **kwargs)`` in each.

        Args:
            function: What to run; may be left out where the script itself is started again or was started by a
                launcher such as torchrun.
            *args: Further arguments.
            **kwargs: Further keyword arguments.

        Returns:
            What ``function`` returned in this process; where this process is only the supervisor, in rank 0.

        Raises:
            LaunchError: The strategy runs a function and none was given, or a process failed.
        """
        if function is None and self.plan.runs_function:
            raise LaunchError(
                f"function: none given, but strategy {self.plan.strategy.name!r} runs a function in each process. "
                "Valid: runtime.launch(train) with train(runtime), or strategy='ddp' to run the whole script in each."
            )
        if self._is_live:
            return None if function is None else function(self, *args, **kwargs)
        return self._strategy.launch(_enter, self, function, args, kwargs)

    def teardown(self, failed: bool = False) -> None:
        """Leave the other processes and free what is held; may be called twice. A script's end leaves by itself.

        Args:
            failed: Do not wait for the others, since this process is ending with an error.
        """
        if self._is_live:
            self._is_live = False
            self.__dict__.pop("backward", None)
            self._strategy.teardown(failed)

    def _enter(self) -> None:
        """Make this process ready, and decide the step path."""
        self._strategy.setup_environment()
        self._is_live = True
        self._bind_backward()

    def _bind_backward(self) -> None:
        """Let what the strategy's backward comes down to stand before this class's own, which a step then spares."""
        if type(self).backward is Runtime.backward:
            self.__dict__["backward"] = self._strategy.bound_backward()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.teardown(failed=kind is not None)

    def __getstate__(self) -> dict[str, Any]:
        if self._is_live:
            raise TypeError("a Runtime that is live in this process cannot be sent to another")
        state = dict(self.__dict__, plan=Plan.from_json(self.plan.to_json()))
        return {name: value for name, value in state.items() if name != "_optimizers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _optimizers=WeakKeyDictionary())

    # -- who and where -------------------------------------------------------------------------------------------

    @property
    def strategy(self) -> Strategy:
        """The live strategy; asking for it starts the processes."""
        if not self._is_live:
            self.launch()
        return self._strategy

    @property
    def device(self) -> torch.device:
        """The device that this process works on."""
        return self._strategy.root_device

    @property
    def num_processes(self) -> int:
        """How many processes there are in all."""
        return self._strategy.world_size

    @property
    def process_index(self) -> int:
        """This process's number among all, from 0."""
        return self._strategy.global_rank

    @property
    def local_process_index(self) -> int:
        """This process's number on its machine, from 0."""
        return self._strategy.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0 of all."""
        return self._strategy.global_rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is process 0 of its machine."""
        return self._strategy.local_rank == 0

    def print(self, *args: Any, **kwargs: Any) -> None:
        """The built-in ``print``, in process 0 only."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201  what the user asked for

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self, *objects: Any) -> Any:
        """Modules, optimizers, schedulers and data loaders, made ready for the loop.

        Modules are converted, moved and wrapped as precision and strategy need it, and handed back as they are where
        nothing is needed; data loaders yield this process's share on its device; optimizers follow their modules.
        Schedulers are handed back as they are. Modules go before their optimizers, whatever the order given.

        Returns:
            The prepared objects in the order given; a single one by itself.

        Raises:
            WrongTypeError: An object is none of these.
        """
        strategy = self.strategy
        prepared: list[Any] = [self._prepare_module(obj) if isinstance(obj, nn.Module) else None for obj in objects]
        for position, obj in enumerate(objects):
            if prepared[position] is None:
                prepared[position] = self._prepare_other(obj, strategy)
        self._bind_backward()
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _prepare_module(self, module: nn.Module) -> nn.Module:
        strategy = self.strategy
        if self.unwrap_model(module) is not module:
            return module
        wrapped = strategy.setup_module(module)
        if not needs_forward_context(strategy.precision):
            return wrapped
        return PreparedModule(wrapped, module, strategy.precision)

    def _prepare_other(self, obj: Any, strategy: Strategy) -> Any:
        if isinstance(obj, PreparedOptimizer | PreparedLoader | LRScheduler):
            return obj
        if isinstance(obj, Optimizer):
            (optimizer,) = strategy.setup_optimizers([obj])
            self._optimizers[optimizer] = None
            return optimizer if strategy.steps_plainly() else PreparedOptimizer(optimizer, strategy)
        if isinstance(obj, DataLoader):
            return prepare_loader(obj, strategy)
        raise WrongTypeError(
            f"prepare: given an object of type {type(obj).__name__}. Valid: torch modules, optimizers, schedulers and "
            "DataLoaders."
        )

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        """The user's own module behind a prepared one."""
        return model.inner if isinstance(model, PreparedModule) else self._strategy.unwrap_module(model)

    def strategy_module(self, model: nn.Module) -> nn.Module:
        """The module as the strategy set it up, behind a prepared one."""
        return model.wrapped if isinstance(model, PreparedModule) else model

    # -- the step ------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar: scaled where the precision scales, reduced over processes."""
        self.strategy.bound_backward()(loss, *args, **kwargs)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision's forward context, for computations outside of a prepared module."""
        return self.strategy.precision.forward_context()

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward leaves the gradients of ``model`` unreduced, for accumulation."""
        return self.strategy.no_sync(self.strategy_module(model))

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor | None:
        """Limit the norm of all gradients as one vector, in place.

        Args:
            parameters: Whose gradients.
            max_norm: The largest norm.
            norm_type: Order of the norm.

        Returns:
            The norm before clipping, a scalar.
        """
        if not max_norm >= 0:
            raise ConfigurationError(f"max_norm={max_norm!r}. Valid: a number from 0 on.")
        return self._clip(parameters, max_norm, "norm", norm_type)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Limit each element of the gradients to ``-clip_value … clip_value``, in place."""
        self._clip(parameters, clip_value, "value", 2.0)

    def _clip(self, parameters: Any, limit: float, algorithm: str, norm_type: float) -> Tensor | None:
        chosen: list[Any] = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        strategy = self.strategy
        strategy.check_clip_algorithm(algorithm)
        if strategy.precision.scales_loss:
            given = {id(parameter) for parameter in chosen}
            for optimizer in self._optimizers:
                if any(id(p) in given for group in optimizer.param_groups for p in group["params"]):
                    strategy.unscale_gradients(optimizer)
        return strategy.clip_parameters(chosen, limit, algorithm, norm_type)

    # -- collectives on nested structures ------------------------------------------------------------------------

    def gather(self, data: Any) -> Any:
        """Each tensor in ``data`` of all processes, joined along the first dimension; a scalar becomes a vector.

        What comes back takes no part in gradients, nor does it in :meth:`reduce`.

        Raises:
            ConfigurationError: Shapes or dtypes differ between processes.
            WrongTypeError: ``data`` is a number, a text or the like.
        """
        strategy = self.strategy
        _refuse_single("gather", data)

        def gather(tensor: Tensor) -> Tensor:
            gathered = strategy.all_gather(tensor.detach())
            return gathered.flatten(0, 1) if tensor.dim() else gathered

        return map_tensors(gather, data)

    def reduce(self, data: Any, reduction: str = "mean") -> Any:
        """Each tensor in ``data`` combined elementwise over all processes.

        Raises:
            ConfigurationError: ``reduction`` is none of ``mean``, ``sum``, ``min``, ``max``, ``product``.
            WrongTypeError: ``data`` is a number, a text or the like.
        """
        strategy = self.strategy
        strategy.check_reduction(reduction)
        _refuse_single("reduce", data)
        return map_tensors(lambda tensor: strategy.reduce(tensor.detach(), reduction), data)

    def broadcast(self, data: Any, from_process: int = 0) -> Any:
        """``data``, any picklable object, as process ``from_process`` has it; its tensors on this process's device."""
        strategy = self.strategy
        if from_process not in range(strategy.world_size):
            raise ConfigurationError(
                f"from_process={from_process!r}: no such process. Valid: 0 to {strategy.world_size - 1}."
            )
        received = strategy.broadcast(data, from_process)
        return map_tensors(lambda tensor: tensor.to(strategy.root_device), received)

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process is here."""
        self.strategy.barrier(name)

    def wait_for_everyone(self) -> None:
        """Wait until every process is here."""
        self.strategy.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Process 0 goes through the block before the others enter it."""
        if not self.is_main_process:
            self.barrier()
        yield
        if self.is_main_process:
            self.barrier()

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        """Write ``state`` as one committed checkpoint; every process calls it.

        Args:
            state: By name: modules, optimizers, schedulers and whatever else has a ``state_dict``, which is what is
                written of them; tensors and plain values.
            path: Where.

        Raises:
            WrongTypeError: ``state`` is no mapping.
            ConfigurationError: A part is named ``core``, where the checkpoint says what wrote it.
            CheckpointError: It could not be written.
        """
        if not isinstance(state, Mapping):
            raise WrongTypeError(f"state: given {type(state).__name__}. Valid: a mapping, as in {{'model': model}}.")
        if "core" in state:
            raise ConfigurationError("state: 'core' is the name of the checkpoint's own part. Valid: any other name.")
        saved = {name: self._state_of(value) for name, value in state.items()}
        self.strategy.save_checkpoint({**saved, "core": run_facts(self.plan)}, path)

    def load(self, path: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read a checkpoint; every process calls it.

        Args:
            path: Where.
            state: By name: objects with a ``load_state_dict`` that take back their part.

        Returns:
            What no object in ``state`` took, by name, tensors on the CPU.

        Raises:
            WrongTypeError: An object in ``state`` has no ``load_state_dict``.
            CheckpointError: It is absent, uncommitted or damaged, lacks a part that ``state`` asks for, or has it of
                another form than its object takes.
        """
        checkpoint = self.strategy.load_checkpoint(path)
        checkpoint.pop("core", None)
        return restore(checkpoint, {name: self._load_of(name, value) for name, value in (state or {}).items()}, path)

    def _state_of(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self.strategy.module_state(self.unwrap_model(value))
        if isinstance(value, Optimizer):
            return self.strategy.optimizer_state(_own_optimizer(value))
        return value.state_dict() if hasattr(value, "state_dict") else value

    def _load_of(self, name: str, value: Any) -> Callable[[Any], Any]:
        if isinstance(value, nn.Module):
            return partial(self.strategy.load_module_state, self.unwrap_model(value))
        if isinstance(value, Optimizer):
            return partial(self.strategy.load_optimizer_state, _own_optimizer(value))
        load: Callable[[Any], Any] | None = getattr(value, "load_state_dict", None)
        if not callable(load):
            raise WrongTypeError(f"state[{name!r}]: given {type(value).__name__}. Valid: what has a load_state_dict.")
        return load

    def __repr__(self) -> str:
        plan = self.plan
        return (
            f"<Runtime: {plan.strategy.name} on {', '.join(plan.devices)}, {plan.precision.name}, "
            f"{'live' if self._is_live else 'not launched'}>"
        )


def _refuse_single(name: str, data: Any) -> None:
    """Refuse a number and the like: handed back as it is, it would pass for what all processes have together."""
    if isinstance(data, int | float | complex | str | bytes) or hasattr(data, "__array_interface__"):
        raise WrongTypeError(
            f"{name}: given {data!r} of type {type(data).__name__}. Valid: a tensor, such as torch.tensor(...) of it, "
            "or a structure of tensors."
        )


def _own_optimizer(optimizer: Optimizer) -> Optimizer:
    return optimizer.optimizer if isinstance(optimizer, PreparedOptimizer) else optimizer


def _enter(runtime: Runtime, function: Callable[..., T] | None, args: Any, kwargs: Any) -> T | None:
    """What each process runs."""
    runtime._enter()
    if function is None:
        return None
    if not runtime.plan.runs_function:
        return function(runtime, *args, **kwargs)
    # The process was started for this function and ends with it; nothing is left to tear down at its exit.
    with runtime:
        return function(runtime, *args, **kwargs)
