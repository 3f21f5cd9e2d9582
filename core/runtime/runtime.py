"""Runtime: the front end for your own loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from ..accelerators.base import Accelerator
from ..checkpoints.base import CheckpointIO
from ..data import DataSettings
from ..environments.base import ClusterEnvironment
from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import suggest_arguments, suggest_in_methods
from ..loggers.base import Logger
from ..plan import Plan, Request, resolve_for
from ..precisions.base import Precision
from ..strategies.base import Strategy
from .accelerate_handlers import DistributedDataParallelKwargs, InitProcessGroupKwargs, apply_handlers
from .checkpoint.project import ProjectConfiguration
from .checkpoint.run_state import StateSaving
from .exchange.gather_for_metrics import MetricGathering
from .free_memory import MemoryRelease
from .gradient_state import GradientAccumulationPlugin
from .process_control import ProcessControl
from .profiling import ProfileKwargs, Profiling
from .settings import HABITS, REMEDIES, check_rng_types, read_accelerator, read_accumulation, read_data, read_precision
from .step.backward import StepParts
from .tracking import Tracking

__all__ = ["Runtime"]


@suggest_in_methods(leave=("backward",))
class Runtime(ProcessControl, MetricGathering, StepParts, StateSaving, Tracking, Profiling, MemoryRelease):
    """Hardware, processes, precision and checkpoints for your own training loop.

    ::

        runtime = Runtime(accelerator="gpu", strategy="ddp", devices=2, precision="bf16-mixed")
        model, optimizer, loader = runtime.prepare(model, optimizer, loader)
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    The constructor resolves and checks the arguments; it starts no process, and neither does any property. The first
    call of a method that needs the processes of the run, such as :meth:`prepare`, starts them, or :meth:`launch` does.
    Until then this process is process 0 of the run, unless another launcher has started it. Strategies that run a
    function in each process (``ddp_spawn``, ``ddp_fork``, ``ddp_notebook``) need the loop in a function:
    ``runtime.launch(train)`` calls ``train(runtime)`` in each process.

    Args:
        accelerator: The hardware, as a name or an object; ``"auto"`` selects the best that is present.
        strategy: How to distribute the training, as a name or an object.
        devices: The devices to use on each machine; see :mod:`core.accelerators.devices`.
        num_nodes: The number of machines.
        precision: The dtype policy, as a name or an object.
        checkpoint_io: The checkpoint format, as a name or an object.
        cluster_environment: Where ranks and addresses come from, as a name or an object.
        mixed_precision: Accelerate's name of the precision: ``"no"``, ``"fp16"`` or ``"bf16"``.
        cpu: Whether to use the CPU; the same as ``accelerator="cpu"``.
        gradient_accumulation_steps: The number of micro-batches for each step of the optimizers, in
            :meth:`accumulate`; or a :class:`core.GradientAccumulationPlugin`.
        gradient_accumulation_plugin: The same settings, under Accelerate's name.
        step_scheduler_with_optimizer: Whether prepared schedulers step only if their optimizer does.
        device_placement: Whether :meth:`prepare` moves modules and batches to the device.
        split_batches: As in :class:`core.data.DataSettings`, for prepared loaders; so are the next six.
        dispatch_batches: Whether process 0 alone reads the data.
        even_batches: Whether every process has the same number of batches.
        use_seedable_sampler: Whether the order depends on a seed and the epoch alone.
        data_seed: That seed.
        use_stateful_dataloader: Whether iterable data is read through torchdata's ``StatefulDataLoader``.
        non_blocking: Whether batches are copied to the device without waiting.
        dataloader_config: Those seven settings in one object.
        rng_types: Accelerate's list of generators that the processes share; ``["generator"]`` is always so.
        kwargs_handlers: Settings of DistributedDataParallel and of the process group, as Accelerate's objects; the same
            as arguments of :class:`core.strategies.DDPStrategy`.
        log_with: The trackers: a name such as ``"tensorboard"``, an object of :class:`core.loggers.Logger` or with the
            methods of an Accelerate tracker, a list of those, or ``"all"`` for every installed one.
        project_dir: The folder for files of the project: checkpoints, and those that trackers write.
        project_config: Where the files of the project go, and how many checkpoints are kept.
        sync_batchnorm: Whether batch norm layers of prepared modules normalize over the batches of all processes while
            they train, until the run ends. All processes then need the same number of batches.
        debug: Whether the processes compare what they do before each collective of the Runtime: which one, from which
            line of the code, and with which shapes and dtypes. If they differ, all of them raise an error that names
            the ranks. ``None`` reads the environment variable ``CORE_DEBUG``, 0 or 1.
        import_modules: Modules that each process of the run imports first, such as a package that adds a device type to
            torch; by default those of the environment variable ``CORE_IMPORT``.

    Raises:
        CoreError: An argument is unknown or has the wrong type, contradicts another one, or names a backend that
            cannot be used here.
    """

    @partial(suggest_arguments, remedies=REMEDIES | HABITS)
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
        mixed_precision: str | None = None,
        cpu: bool = False,
        gradient_accumulation_steps: int | GradientAccumulationPlugin = 1,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        device_placement: bool = True,
        split_batches: bool | None = None,
        dispatch_batches: bool | None = None,
        even_batches: bool | None = None,
        use_seedable_sampler: bool | None = None,
        data_seed: int | None = None,
        use_stateful_dataloader: bool | None = None,
        non_blocking: bool | None = None,
        dataloader_config: DataSettings | None = None,
        rng_types: Sequence[str] | None = None,
        kwargs_handlers: Sequence[DistributedDataParallelKwargs | InitProcessGroupKwargs | ProfileKwargs] | None = None,
        log_with: str | Logger | Sequence[str | Logger] | None = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        sync_batchnorm: bool = False,
        debug: bool | None = None,
        import_modules: str | Sequence[str] | None = None,
    ) -> None:
        request = Request.read(
            import_modules=import_modules,
            accelerator=read_accelerator(accelerator, cpu),
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=read_precision(precision, mixed_precision),
            checkpoint_io=checkpoint_io,
            cluster_environment=cluster_environment,
        )
        accumulation = read_accumulation(gradient_accumulation_steps, gradient_accumulation_plugin)
        data_settings = read_data(
            dataloader_config,
            {
                "split_batches": split_batches,
                "dispatch_batches": dispatch_batches,
                "even_batches": even_batches,
                "use_seedable_sampler": use_seedable_sampler,
                "data_seed": data_seed,
                "use_stateful_dataloader": use_stateful_dataloader,
                "non_blocking": non_blocking,
            },
        )
        check_rng_types(rng_types)
        for name, value in (
            ("device_placement", device_placement),
            ("step_scheduler_with_optimizer", step_scheduler_with_optimizer),
            ("sync_batchnorm", sync_batchnorm),
        ):
            if not isinstance(value, bool):
                raise WrongTypeError(f"{name}={value!r}: must be True or False.")
        is_debug = request.flag("debug", debug)
        facts = {"gradient_accumulation_steps": accumulation.num_steps, "debug": is_debug}
        self._connect(resolve_for("Runtime", request, facts))
        self._debug = is_debug
        self._gradient_state.plugin, self._data_settings = accumulation, data_settings
        self._device_placement, self._step_scheduler_with_optimizer = device_placement, step_scheduler_with_optimizer
        self._profile_kwargs = apply_handlers(kwargs_handlers, self._strategy, self.num_processes)
        if not self._strategy.supports_custom_loop:
            raise ConfigurationError(
                f"strategy={self.plan.strategy.name!r}: it runs whole training steps only, so it cannot be used with a "
                "loop of your own. Use core.Trainer, or another strategy."
            )
        if type(self._strategy).setup is not Strategy.setup:
            raise ConfigurationError(
                f"strategy: {type(self._strategy).__name__} defines setup(trainer), which only a Trainer calls. "
                "Override setup_environment or setup_module instead, which a Runtime calls too."
            )
        if sync_batchnorm:
            self._synchronize_batch_norms()
        self._set_project(project_dir, project_config)
        self._request_trackers(log_with, None if self.logging_dir is None else os.fspath(self.logging_dir))

    @classmethod
    def from_plan(cls, plan: Plan) -> Runtime:
        """A Runtime for a resolved Plan, for front ends that leave the training step to the strategy.

        Unlike the constructor, it accepts strategies with ``supports_custom_loop = False``.
        """
        runtime = cls.__new__(cls)
        runtime._connect(plan)
        return runtime

    def __repr__(self) -> str:
        plan, state = self.plan, "live" if self._is_live else "not launched"
        return f"<Runtime: {plan.strategy.name} on {', '.join(plan.devices)}, {plan.precision.name}, {state}>"
