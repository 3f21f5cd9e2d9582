"""Facts of a run under the names that scripts for Accelerate compare with, and code that only some processes run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..errors import ConfigurationError, WrongTypeError, nearest
from ..hints.attributes import raise_unknown
from ..plan import Plan
from ..precisions.base import Precision
from ..strategies.base import Strategy
from ..utilities.live_runtimes import last_run
from .checks import check_process
from .settings import PRECISIONS

P = ParamSpec("P")
T = TypeVar("T")


class CompileFacts:
    """The ``dynamo_plugin`` that scripts read: only the script itself compiles models.

    Raises:
        ConfigurationError: A script sets one of these attributes, which would compile nothing.
    """

    backend = "NO"
    mode = "default"
    fullgraph = disable = use_regional_compilation = False
    dynamic = options = None

    def __setattr__(self, name: str, value: Any) -> None:
        if value == getattr(self, name, None):
            return
        raise ConfigurationError(
            f"dynamo_plugin.{name}={value!r}: torch-hal compiles no model. Call torch.compile(model, ...) before "
            "prepare."
        )

    def __repr__(self) -> str:
        return f"<dynamo_plugin: backend={self.backend!r}>"


_MIXED = {torch.float32: "no", torch.float16: "fp16", torch.bfloat16: "bf16"}
_NAMES = {ours: theirs for theirs, ours in PRECISIONS.items()}


class RunFacts:
    """What :class:`core.Runtime`, its ``state`` and :class:`core.PartialState` say of a process and its run."""

    _strategy: Strategy

    @property
    def device(self) -> torch.device:
        """The device that this process works on."""
        return self._strategy.root_device

    @property
    def num_processes(self) -> int:
        """The number of processes of the run, on all machines."""
        return self._strategy.world_size

    @property
    def process_index(self) -> int:
        """The number of this process among all processes, from 0."""
        return self._strategy.global_rank

    @property
    def local_process_index(self) -> int:
        """The number of this process on its machine, from 0."""
        return self._strategy.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0 among all processes."""
        return self._strategy.global_rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is process 0 of its machine."""
        return self._strategy.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last of all processes."""
        return self.process_index == self.num_processes - 1

    @property
    def use_distributed(self) -> bool:
        """Whether the run has several processes."""
        return self.num_processes > 1

    @property
    def multi_device(self) -> bool:
        """Whether the run has several processes, each on a device other than the CPU."""
        return self.use_distributed and self.device.type != "cpu"

    @property
    def distributed_type(self) -> str:
        """How the run is distributed, in Accelerate's spelling where Accelerate has it.

        ``NO`` for one process; ``MULTI_`` and the kind of device, such as ``MULTI_CPU``, for several; the name that
        the strategy declares, such as ``FSDP``, if it declares one.
        """
        strategy = self._strategy
        if strategy.distributed_type is not None:
            return strategy.distributed_type
        accelerator = strategy.accelerator
        return f"MULTI_{accelerator.device_family or accelerator.name.upper()}" if self.use_distributed else "NO"

    @property
    def mixed_precision(self) -> str:
        """``no``, ``fp16`` or ``bf16``, if parameters stay in 32 bits; otherwise the name of the precision."""
        return _mixed_precision(self._strategy.precision)

    @property
    def use_fp16(self) -> bool:
        """Whether ``mixed_precision`` is ``"fp16"``."""
        return self.mixed_precision == "fp16"

    @property
    def scaler(self) -> Any:
        """The :class:`torch.amp.GradScaler` of the run, from its start on; ``None`` if the loss is not scaled."""
        return getattr(self._strategy.precision, "scaler", None)

    def _engine_setting(self, name: str) -> Any:
        """What the strategy declares under ``name``; ``None`` if it does not."""
        return self._strategy.engine_settings.get(name)

    @property
    def deepspeed_plugin(self) -> Any:
        """The settings of a strategy with this engine; otherwise ``None``."""
        return self._engine_setting("deepspeed_plugin")

    @property
    def fsdp_plugin(self) -> Any:
        """The settings of a strategy that shards the model's parameters with torch's FSDP; otherwise ``None``."""
        return self._engine_setting("fsdp_plugin")

    @property
    def megatron_lm_plugin(self) -> Any:
        """The settings of a strategy with this engine; otherwise ``None``."""
        return self._engine_setting("megatron_lm_plugin")

    @property
    def torch_tp_plugin(self) -> None:
        """``None``: tensor parallelism is set by arguments of the strategy."""
        return None

    @property
    def parallelism_config(self) -> Any:
        """What the Runtime was given, or ``None``: then arguments of the strategy say how processes share the work."""
        return self._engine_setting("parallelism_config")

    @property
    def dynamo_plugin(self) -> CompileFacts:
        """The settings of compilation, which is never in use: ``backend`` is ``"NO"``."""
        return CompileFacts()

    @property
    def fp8_recipe_handler(self) -> Any:
        """The settings for ``"fp8"`` among ``kwargs_handlers``; ``None`` without them."""
        return getattr(self._strategy.precision, "recipe_handler", None)

    @property
    def is_fsdp2(self) -> bool:
        """Whether the model's parameters are sharded with the second version of torch's FSDP."""
        return getattr(self.fsdp_plugin, "fsdp_version", None) == 2

    @property
    def device_mesh(self) -> Any:
        """The strategy's :class:`torch.distributed.device_mesh.DeviceMesh`; ``None`` if it has none.

        Raises:
            ConfigurationError: It has one, but its processes have not been started.
        """
        settings = self._strategy.engine_settings
        mesh = settings.get("device_mesh")
        if mesh is None and "device_mesh" in settings:
            raise ConfigurationError(
                f"device_mesh: strategy {self._strategy.name!r} makes it when its processes start. Call "
                "runtime.launch() before."
            )
        return mesh

    @property
    def torch_device_mesh(self) -> Any:
        """Like :attr:`device_mesh`."""
        return self.device_mesh

    def maybe_context_parallel(
        self,
        buffers: Sequence[Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: set[Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """A context that changes nothing: a strategy that divides sequences among processes does so by itself."""
        return nullcontext()

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """End the last run, so that another Runtime may have other settings; does nothing if there is none."""
        run = last_run()
        if run is not None:
            run.teardown()

    # -- in some processes only --------------------------------------------------------------------------------------

    # The decorators decide in each call, so they can be used before the processes are started. A function that does not
    # run in a process returns None there.

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 of each machine.

        To print once in the run: ``runtime.on_main_process(print)(...)``.
        """
        if self.is_local_main_process:
            print(*args, **kwargs)  # noqa: T201  what the user asked for

    def on_main_process(self, function: Callable[P, T] | None = None) -> Any:
        """Decorator: run ``function`` in process 0 only."""
        return _only(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Callable[P, T] | None = None) -> Any:
        """Decorator: run ``function`` in process 0 of each machine only."""
        return _only(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Callable[P, T] | None = None) -> Any:
        """Decorator: run ``function`` in the last process only."""
        return _only(function, lambda: self.is_last_process)

    def on_process(self, function: Callable[P, T] | None = None, process_index: int | None = None) -> Any:
        """Decorator: run ``function`` in one process only, which may be the only one.

        Raises:
            ConfigurationError: In a run of several processes: there is no process ``process_index``.
        """

        def runs_here() -> bool:
            count = self.num_processes
            return count == 1 or check_process("process_index", process_index, count) == self.process_index

        return _only(function, runs_here)

    def on_local_process(self, function: Callable[P, T] | None = None, local_process_index: int | None = None) -> Any:
        """Decorator: run ``function`` in one process of each machine only, which may be the only one.

        Raises:
            ConfigurationError: In a run of several processes: a machine has no process ``local_process_index``.
        """

        def runs_here() -> bool:
            count = self._strategy.local_processes
            is_one = self.num_processes == 1
            return (
                is_one or check_process("local_process_index", local_process_index, count) == self.local_process_index
            )

        return _only(function, runs_here)


class ReadOnlyFacts(RunFacts):
    """Facts about the run that are no :class:`core.Runtime`: what is not here, a Runtime may have."""

    _called: str
    _front_end: type

    def _remedy(self, name: str) -> str:
        own = [each for each in dir(self) if not each.startswith("_")]
        return f" Use runtime.{name}." if hasattr(self._front_end, name) else nearest(name, own)

    if not TYPE_CHECKING:  # it would allow every attribute

        def __getattr__(self, name: str) -> Any:
            return raise_unknown(self, name, self._called, self._remedy)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise ConfigurationError(
                f"{self._called}.{name} = {value!r:.100}: is read-only. It says what the run is; arguments of the "
                "Runtime set it."
            )
        super().__setattr__(name, value)


class FactsView(ReadOnlyFacts):
    """The facts about a process and its run: what :attr:`core.Runtime.state` returns.

    Args:
        strategy: Of the run.
        plan: Of the run.
        front_end: The class of the Runtime, whose other members an attribute that is not here may be.
    """

    _called = "runtime.state"

    def __init__(self, strategy: Strategy, plan: Plan, front_end: type) -> None:
        self._strategy, self._plan, self._front_end = strategy, plan, front_end

    @property
    def plan(self) -> Plan:
        """What was resolved: what runs, on which devices, and why."""
        return self._plan

    @property
    def backend(self) -> str | None:
        """The ``torch.distributed`` backend; ``None`` if the run has no process group."""
        return self._plan.process_group_backend

    def __repr__(self) -> str:
        backend = "" if self.backend is None else f"  Backend: {self.backend}"
        return (
            f"Distributed environment: {self.distributed_type}{backend}\n"
            f"Num processes: {self.num_processes}\n"
            f"Process index: {self.process_index}\n"
            f"Local process index: {self.local_process_index}\n"
            f"Device: {self.device}\n"
            f"Mixed precision: {self.mixed_precision}"
        )


def _mixed_precision(precision: Precision) -> str:
    if precision.name in _NAMES:
        return _NAMES[precision.name]
    if precision.param_dtype is torch.float32:
        return _MIXED.get(precision.compute_dtype, precision.name)
    return precision.name


def _only(function: Callable[P, T] | None, runs_here: Callable[[], bool]) -> Any:
    """``function``, which returns ``None`` in processes where ``runs_here`` is false; a decorator without it."""
    if function is None:
        return partial(_only, runs_here=runs_here)
    if not callable(function):
        raise WrongTypeError(
            f"Runtime: a decorator got {function!r}, which is not a function. Write @runtime.on_main_process above "
            "one; pass the number of a process by its name: @runtime.on_process(process_index=1)."
        )

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if runs_here() else None

    return run
