"""Runtime: the front end for your own loop."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import Any, Self, TypeVar, TypeVarTuple, overload

import attrs
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.profiler import profile
from torch.utils.hooks import RemovableHandle

from ..accelerators.base import Accelerator
from ..checkpoints.base import CheckpointIO
from ..data import ActivePasses, DataSettings, PreparedLoader, skip_first_batches
from ..environments.base import ClusterEnvironment
from ..hints.argument_checks import check_flags, suggest_arguments, suggest_in_methods
from ..hints.attributes import KnownAttributes
from ..loggers.base import Logger
from ..plan import Plan, Request, assemble, resolve_for
from ..precisions.base import Precision
from ..strategies.base import Strategy
from ..utilities.live_runtimes import note_run
from .accelerate_handlers import (
    AutocastKwargs,
    ProfileKwargs,
    Profiling,
    apply_handlers,
    autocast_with,
    set_autocast,
    uses_autocast,
)
from .accumulation import Window, version_of
from .backward import Backward, Gradients, Synchronization
from .checkpoint.project import ProjectConfiguration, read_project
from .checkpoint.run_state import LoadHook, SaveHook, StateSaving
from .checkpoint.saving import Checkpointing
from .checks import check_kind, used_by_with
from .collectives import Collectives, MetricGathering, split
from .gradient_state import GradientAccumulationPlugin, GradientState
from .lifecycle import Life
from .prepare.prepared import PreparedObjects
from .prepare.preparing import Preparing
from .prepare.wrappers import own_module, strategy_module
from .process_control import Agreement, ProcessControl
from .properties import FactsView, RunFacts
from .settings import (
    check_compilation,
    check_loop,
    check_parallelism,
    read_accelerator,
    read_accumulation,
    read_data,
    read_precision,
    read_rng_types,
    read_strategy,
    steps_of_plugin,
)
from .tracking import Tracking

L = TypeVar("L", bound=list[Any])
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@suggest_in_methods(leave=("backward",))
class Runtime(RunFacts, KnownAttributes):
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
        mixed_precision: Accelerate's name of the precision: ``"no"``, ``"fp16"``, ``"bf16"``, or ``"fp8"``, which is
            ``precision="fp8-mixed"`` of torch-hal-torchao.
        fp16: ``True`` is ``mixed_precision="fp16"``, ``False`` is ``"no"``; by default the variable ``USE_FP16``.
        cpu: Whether to use the CPU; the same as ``accelerator="cpu"``.
        gradient_accumulation_steps: The number of micro-batches for each step of the optimizers, in
            :meth:`accumulate`; or a :class:`core.GradientAccumulationPlugin`.
        gradient_accumulation_plugin: The same settings, under Accelerate's name.
        step_scheduler_with_optimizer: Whether prepared schedulers step only if their optimizer does.
        device_placement: Whether :meth:`prepare` moves modules and batches to the device.
        split_batches: As in :class:`core.data.DataSettings`, for prepared loaders; so are the next six.
        dispatch_batches: Whether process 0 alone reads the data; by default it does so for iterable data.
        even_batches: Whether every process has the same number of batches.
        use_seedable_sampler: Whether the order depends on a seed and the epoch alone.
        data_seed: That seed.
        use_stateful_dataloader: Whether iterable data is read through torchdata's ``StatefulDataLoader``.
        non_blocking: Whether batches are copied to the device without waiting.
        dataloader_config: Those seven settings in one object.
        rng_types: The generators that are made equal to process 0's before each pass over a prepared loader:
            ``"torch"`` and the type of the run's devices; ``"generator"``, that of the sampler, always is.
        deepspeed_plugin: Settings of DeepSpeed under Accelerate's names, such as an object of
            ``torch_hal_deepspeed.DeepSpeedPlugin``; the same as ``strategy=DeepSpeedStrategy(...)``.
        fsdp_plugin: Settings of FSDP under Accelerate's names, such as an object of
            ``torch_hal_fsdp.FullyShardedDataParallelPlugin``; the same as ``strategy=FSDPStrategy(...)``.
        parallelism_config: An object of ``torch_hal_parallel.ParallelismConfig`` or of Accelerate's class, whose sizes
            say how the processes share the work; the same as a strategy for it.
        dynamo_plugin: An object of Accelerate's settings for compilation, which must name no backend.
        dynamo_backend: ``"no"``, or ``None``: models are compiled before they are prepared.
        kwargs_handlers: Settings of DistributedDataParallel, of the process group, of autocast and of ``"fp8"``, as
            Accelerate's objects; the first two are the same as arguments of :class:`core.strategies.DDPStrategy`.
        log_with: The trackers: a name such as ``"tensorboard"``, an object of :class:`core.loggers.Logger` or with the
            methods of an Accelerate tracker, a list of those, or ``"all"`` for every installed one.
        project_dir: The folder for files of the project: checkpoints, and those that trackers write.
        project_config: Where the files of the project go, and how many checkpoints are kept.
        logging_dir: The folder that trackers write files into; ``project_dir`` unless given.
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

    @suggest_arguments
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
        fp16: bool | None = None,
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
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        parallelism_config: Any = None,
        dynamo_plugin: Any = None,
        dynamo_backend: str | None = None,
        kwargs_handlers: Sequence[Any] | None = None,
        log_with: str | Logger | Sequence[str | Logger] | None = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        sync_batchnorm: bool = False,
        debug: bool | None = None,
        import_modules: str | Sequence[str] | None = None,
    ) -> None:
        request = Request.read(
            import_modules=import_modules,
            accelerator=read_accelerator(accelerator, cpu),
            strategy=read_strategy(strategy, deepspeed_plugin, fsdp_plugin, parallelism_config),
            devices=devices,
            num_nodes=num_nodes,
            precision=read_precision(precision, mixed_precision, fp16, kwargs_handlers),
            checkpoint_io=checkpoint_io,
            cluster_environment=cluster_environment,
        )
        gradient_accumulation_steps = steps_of_plugin(deepspeed_plugin, gradient_accumulation_steps)
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
        check_flags(
            device_placement=device_placement,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            sync_batchnorm=sync_batchnorm,
        )
        is_debug = request.flag("debug", debug)
        facts = {"gradient_accumulation_steps": accumulation.num_steps, "debug": is_debug}
        plan = resolve_for("Runtime", request, facts)
        strategy = assemble(plan)
        profile_kwargs = apply_handlers(kwargs_handlers, strategy, strategy.world_size)
        check_loop(plan, strategy)
        if parallelism_config is not None:
            check_parallelism(parallelism_config, strategy.world_size)
            strategy.engine_settings = {**strategy.engine_settings, "parallelism_config": parallelism_config}
        check_compilation(dynamo_plugin, dynamo_backend)
        self._connect(
            plan,
            strategy,
            accumulation=accumulation,
            data_settings=data_settings,
            rng_types=read_rng_types(rng_types, strategy.root_device.type),
            device_placement=device_placement,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            sync_batchnorm=sync_batchnorm,
            debug=is_debug,
            profile_kwargs=profile_kwargs,
            project=read_project(project_dir, project_config, logging_dir),
            log_with=log_with,
        )

    def _connect(
        self,
        plan: Plan,
        strategy: Strategy,
        *,
        accumulation: GradientAccumulationPlugin | None = None,
        data_settings: DataSettings | None = None,
        rng_types: frozenset[str] = frozenset(),
        device_placement: bool = True,
        step_scheduler_with_optimizer: bool = True,
        sync_batchnorm: bool = False,
        debug: bool = False,
        profile_kwargs: ProfileKwargs | None = None,
        project: ProjectConfiguration | None = None,
        log_with: Any = None,
    ) -> None:
        """Make the parts, each of those that it needs; none knows the Runtime."""
        self._strategy = strategy
        self._project = project = project or ProjectConfiguration()
        life = self._life = Life(plan, strategy)
        state = self._gradient_state = GradientState(ActivePasses(), accumulation or GradientAccumulationPlugin())
        prepared = self._prepared = PreparedObjects()
        window = self._window = Window(state, prepared.optimizers)
        agreement = self._agreement = Agreement(life, state, debug)
        self._preparing = Preparing(
            life,
            prepared,
            state,
            window,
            agreement,
            data_settings=data_settings or DataSettings(),
            rng_types=rng_types,
            device_placement=device_placement,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            sync_batchnorm=sync_batchnorm,
        )
        self._backward = Backward(strategy, prepared, state, window)
        self._tracking = Tracking(life, log_with, project.logging_dir)
        self._profile_kwargs = profile_kwargs
        note_run(self, life.turn)

    # The parts that not every run uses: each is made when it is.
    _gradients = cached_property(lambda run: Gradients(run._life, run._prepared, run._gradient_state))
    _synchronization = cached_property(
        lambda run: Synchronization(run._life, run._prepared, run._gradient_state, run._window)
    )
    _control = cached_property(lambda run: ProcessControl(run._life, run._agreement))
    _collectives = cached_property(lambda run: Collectives(run._life, run._agreement))
    _metrics = cached_property(
        lambda run: MetricGathering(run._life, run._agreement, run._collectives, run._gradient_state)
    )
    _checkpointing = cached_property(lambda run: Checkpointing(run._life, run._project))
    _run_state = cached_property(
        lambda run: StateSaving(run._life, run._prepared, run._window, run._agreement, run._checkpointing, run._project)
    )

    # -- the run -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_plan(cls, plan: Plan, *, sync_batchnorm: bool = False) -> Runtime:
        """A Runtime for a resolved Plan, for front ends that leave the training step to the strategy.

        Unlike the constructor, it accepts strategies with ``supports_custom_loop = False``.
        """
        runtime = cls.__new__(cls)
        runtime._connect(plan, assemble(plan), sync_batchnorm=sync_batchnorm)
        return runtime

    def __repr__(self) -> str:
        plan, state = self.plan, "live" if self._life.is_live else "not launched"
        return f"<Runtime: {plan.strategy.name} on {', '.join(plan.devices)}, {plan.precision.name}, {state}>"

    def launch(self, function: Callable[..., T] | None = None, *args: Any, **kwargs: Any) -> T | None:
        """Start the processes of the run, and call ``function(runtime, *args, **kwargs)`` in each.

        After :meth:`teardown` it starts the run again.

        Args:
            function: What to run. May be omitted if the script itself is run in each process, by the strategy or by a
                launcher such as torchrun.
            *args: Further arguments.
            **kwargs: Further keyword arguments.

        Returns:
            What ``function`` returned in this process; if this process only supervises the others, in rank 0.

        Raises:
            WrongTypeError: ``function`` cannot be called, or takes other arguments.
            LaunchError: The strategy runs a function and none was given, or a process failed.
        """
        self._life.check_function(function, (self, *args), kwargs)
        if self._life.is_live:
            return None if function is None else function(self, *args, **kwargs)
        return self._strategy.launch(_enter, self, function, args, kwargs)

    def teardown(self, failed: bool = False) -> None:
        """Leave the other processes and free all resources; may be called twice. At a script's end this is automatic.

        Methods that need the processes raise an error afterwards, until :meth:`launch` or a ``with`` block starts them.

        Args:
            failed: Whether this process ends with an error; then it does not wait for the others.
        """
        with ExitStack() as stack:  # what fails keeps nothing else from its end
            stack.callback(self._gradient_state.passes.end)
            stack.callback(self._life.end, failed)  # before the workers, as others may wait for a process that failed
            stack.callback(self._backward.unbind)
            stack.callback(self._preparing.end, failed)
            self._tracking.end(failed)

    def end_training(self) -> None:
        """End the trackers' runs, at the end of training; the script can still save, gather and wait.

        The run ends with the script, by :meth:`teardown`, or when another run begins.
        """
        self._life.finish()
        with ExitStack() as stack:
            stack.callback(self._preparing.check_schedules)
            self._tracking.end(failed=False)

    def __enter__(self) -> Self:
        self._life.has_ended = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.teardown(failed=kind is not None)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        note_run(self, self._life.turn)

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What was resolved: what runs, on which devices, and why."""
        return self._life.plan

    @property
    def strategy(self) -> Strategy:
        """The strategy. Before the processes are started, its methods that need them cannot be used."""
        return self._strategy

    @property
    def state(self) -> FactsView:
        """The facts about this process and the run, as one object that prints them."""
        return FactsView(self._strategy, self.plan, type(self))

    @property
    def debug(self) -> bool:
        """Whether call, place in the code, shapes and dtypes are compared over processes before each collective."""
        return self._agreement.debug

    # -- preparing ---------------------------------------------------------------------------------------------------

    @overload
    def prepare(self, object: T, /, *, device_placement: Sequence[bool] | None = None) -> T: ...

    @overload
    def prepare(self, *objects: *Ts, device_placement: Sequence[bool] | None = None) -> tuple[*Ts]: ...

    @overload  # several unpacked lists
    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any: ...

    # mypy takes ``*Any`` for narrower than ``*Ts``
    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:  # type: ignore[misc]
        """Prepare modules, optimizers, schedulers and data loaders for the loop; starts the processes if needed.

        Modules are converted, moved and wrapped as the precision and the strategy need it, or returned unchanged if
        nothing is needed. Data loaders yield this process's part of the data on its device. Optimizers follow their
        modules. Schedulers step when their optimizer does. Modules are prepared before their optimizers in any order
        of the arguments. Other objects are returned unchanged.

        Args:
            *objects: The objects.
            device_placement: For each object, whether a module or a loader's batches are moved to the device; by
                default as the constructor was told.

        Returns:
            The prepared objects in the order given; one object if one was given.

        Raises:
            ConfigurationError: ``device_placement`` does not have one value for each object, there is no object or one
                twice, a module was passed before that was prepared as another one, or the optimizer of a scheduler that
                follows it was not prepared.
            WrongTypeError: An object is a class, a list or a dict of what is prepared, a module in
                ``DistributedDataParallel``, a data set without a loader, an iterator, a text or a number.
        """
        prepared = self._preparing.prepare(objects, device_placement)
        self._backward.bind()
        return prepared

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """One module, as in :meth:`prepare`.

        Args:
            model: The user's own, or a prepared one, which is returned as it is.
            device_placement: Whether it is moved to the device; by default as the constructor was told.
            evaluation_mode: Whether it is only evaluated: it is converted and moved, and not wrapped for training,
                unless the strategy divides modules among the processes.
        """
        prepared = self._preparing.prepare_model(model, device_placement, evaluation_mode)
        self._backward.bind()
        return prepared

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Optimizer:
        """One optimizer, as in :meth:`prepare`. Its state is on the devices of its parameters in any case."""
        prepared = self._preparing.prepare_optimizer(optimizer, device_placement)
        self._backward.bind()
        return prepared

    def prepare_scheduler(self, scheduler: LRScheduler) -> LRScheduler:
        """One scheduler, as in :meth:`prepare`: it steps once a step of its optimizer, on any number of processes."""
        return self._preparing.prepare_scheduler(scheduler)

    def prepare_data_loader(
        self,
        loader: Any,
        device_placement: bool | None = None,
        slice_fn_for_dispatch: None = None,
        *,
        evaluation: bool = False,
        sharded: bool = False,
        settings: DataSettings | None = None,
    ) -> PreparedLoader:
        """One data loader, ready for the loop.

        Args:
            loader: A DataLoader, or any iterable of batches that :func:`core.data.prepare_loader` accepts.
            device_placement: Whether batches are moved to the device; by default as the constructor was told.
            slice_fn_for_dispatch: Must be ``None``: batches that process 0 reads for all are divided by their items.
            evaluation: Whether it is read for evaluation, as in :func:`core.data.prepare_loader`.
            sharded: Whether the user has already sharded the data among the processes, as there.
            settings: How the loader is sharded, seeded and read; replaces the constructor's.

        Raises:
            WrongTypeError: It yields no batches, can be read only once, or cannot be sharded.
            ConfigurationError: It is sharded for other processes than these, or the settings do not fit it.
        """
        return self._preparing.prepare_data_loader(
            loader,
            device_placement,
            slice_fn_for_dispatch,
            evaluation=evaluation,
            sharded=sharded,
            settings=settings,
        )

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> PreparedLoader:
        """A loader of the batches of ``dataloader`` from number ``num_batches`` on, in each pass.

        See :func:`core.data.skip_first_batches`. Where :meth:`load_state` has set a position, the later one counts.
        """
        return skip_first_batches(dataloader, num_batches)

    def unwrap_model(self, model: M) -> M:
        """The user's own module in a prepared one; its forward pass is as the user wrote it, without autocast."""
        check_kind("unwrap_model: model", model, nn.Module, "Pass the prepared module.")
        own: M = own_module(model, self._strategy)  # type: ignore[assignment]  # what prepare was given
        return own

    def strategy_module(self, model: nn.Module) -> nn.Module:
        """The module as the strategy set it up, in a prepared one, which :func:`torch.compile` may have wrapped."""
        return strategy_module(model)

    def free_memory(self, *objects: Any) -> list[Any]:
        """Forget all prepared objects, and return the device's unused memory to it.

        ::

            model, optimizer = runtime.free_memory(model, optimizer)

        Args:
            *objects: What the caller holds.

        Returns:
            ``None`` for each object, to assign to the names that hold them: memory is freed when nothing refers to it.
        """
        self._preparing.forget()
        gc.collect()
        if self._life.is_live:
            self._backward.bind()
            self._strategy.accelerator.empty_cache(self.device)
        return [None] * len(objects)

    def clear(self, *objects: Any) -> list[Any]:
        """Like :meth:`free_memory`, under Accelerate's other name."""
        return self.free_memory(*objects)

    @property
    def dataloader_config(self) -> DataSettings:
        """The settings of loaders."""
        return self._preparing.data_settings

    @property
    def split_batches(self) -> bool:
        """Like :attr:`core.data.DataSettings.split_batches`; likewise the next five."""
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether process 0 alone reads the data."""
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether every process has the same number of batches; if set, for loaders that are prepared later."""
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self._preparing.data_settings = attrs.evolve(self.dataloader_config, even_batches=value)

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether the order depends on a seed and the epoch alone."""
        return self.dataloader_config.use_seedable_sampler

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether iterable data is read through torchdata's ``StatefulDataLoader``."""
        return self.dataloader_config.use_stateful_dataloader

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting."""
        return self.dataloader_config.non_blocking

    # -- the step ----------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *args: Any, num_items: int | Tensor | None = None, **kwargs: Any) -> None:
        """Compute the gradients of ``loss``, a scalar, and reduce them over processes.

        If the precision scales the loss, the gradients are scaled as well. With ``gradient_accumulation_steps`` > 1 the
        loss is divided by the number of micro-batches of its window, or outside of :meth:`accumulate` by that number.

        Args:
            loss: The mean of this micro-batch; with ``num_items`` the sum.
            *args: As of :meth:`torch.Tensor.backward`.
            num_items: The number of items, such as tokens, that ``loss`` is the sum of. The step then uses the mean
                over all items of the window, in all processes, however many each micro-batch has. Every process gives
                it; they exchange one number in the last micro-batch.
            **kwargs: As of :meth:`torch.Tensor.backward`.

        Raises:
            ConfigurationError: ``num_items`` was given twice in a micro-batch, or not in all micro-batches of a window.
        """
        step = self._backward
        native = step.native
        if native is None:
            self._life.live()
            native = step.bind()
        window = step.window
        window.versions = tuple(map(version_of, window.probes))
        if num_items is None and step.divisor == 1:
            native(loss, *args, **kwargs)
        else:
            step.accumulated(loss, num_items, args, kwargs)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last call of a prepared optimizer's step was none.

        Its gradients were not finite, or the strategy first collects those of further calls or of peers.
        """
        return self._gradients.step_was_skipped()

    def unscale_gradients(self, optimizer: Optimizer | Iterable[Optimizer] | None = None) -> None:
        """Undo the scaling of the loss in the gradients, in the last micro-batch of a window; further calls do nothing.

        Args:
            optimizer: The optimizers whose gradients are unscaled; all prepared ones by default.

        Raises:
            WrongTypeError: It is neither an optimizer nor a list of optimizers.
        """
        self._gradients.unscale(optimizer)

    @used_by_with("runtime.autocast()")
    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """The precision's forward context, for computations outside a prepared module.

        Args:
            autocast_handler: Other arguments of :class:`torch.autocast` within it, if the precision is mixed.

        Raises:
            WrongTypeError: ``autocast_handler`` is something else.
        """
        return autocast_with(self._life.live().precision, autocast_handler)

    @property
    def native_amp(self) -> bool:
        """Whether forward passes run under :class:`torch.autocast`; ``False`` can be set, and ``True`` again.

        Without it they compute in the dtype of the parameters, and the loss is scaled as before.

        Raises:
            ConfigurationError: When it is set and changes: the precision is not mixed, or the strategy computes in it
                by itself.
            WrongTypeError: When it is set: it is no bool.
        """
        return uses_autocast(self._strategy)

    @native_amp.setter
    def native_amp(self, value: bool) -> None:
        if value is not self.native_amp:
            set_autocast(self._strategy, f"runtime.native_amp = {value!r}", enabled=value)

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor | None:
        """Clip the norm of all gradients together, in place; scaled gradients are unscaled first.

        Args:
            parameters: The parameters whose gradients are clipped.
            max_norm: The largest norm, ≥ 0.
            norm_type: The order of the norm.

        Returns:
            The norm before clipping, a scalar; ``None`` in a micro-batch that is not the last of its window, where
            nothing is clipped. An engine that clips in its step sets the value there; it is NaN until then.

        Raises:
            ConfigurationError: ``max_norm`` is not a number ≥ 0, or the strategy cannot clip by norm.
        """
        return self._gradients.clip_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Clip each element of the gradients to ``[-clip_value, clip_value]``; otherwise as :meth:`clip_grad_norm_`."""
        self._gradients.clip_value(parameters, clip_value)

    @property
    def gradient_state(self) -> GradientState:
        """Where the loop is in its data, and whether this step synchronizes gradients."""
        return self._gradient_state

    @property
    def sync_gradients(self) -> bool:
        """Whether gradients are synchronized in this step: the last micro-batch of an accumulation."""
        return self._gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """The number of micro-batches in a window. It can be set before optimizers are prepared.

        Raises:
            ConfigurationError: When it is set: it is not an integer ≥ 1, or accumulation begins or ends with it after
                optimizers were prepared.
        """
        return self._gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self._synchronization.set_steps(value)
        if self._life.is_live:
            self._backward.bind()

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """The context of one micro-batch: forward, backward and the optimizer's step, in each iteration of the loop.

        ::

            for inputs, targets in loader:
                with runtime.accumulate(model):
                    loss = criterion(model(inputs), targets)
                    runtime.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()

        ``gradient_accumulation_steps`` micro-batches make a window. The window also ends with the last batch of a pass
        over a prepared loader. Only its last micro-batch reduces gradients over the processes, and only there do
        ``optimizer.step()``, ``optimizer.zero_grad()``, ``scheduler.step()`` and the clipping methods of prepared
        objects act. :meth:`backward` divides each loss by the number of micro-batches of its window, also of a short
        one. Where a loop is left in the middle of a window, the next window starts with cleared gradients.

        Args:
            *models: The prepared models that the losses train: all of them.

        Raises:
            ConfigurationError: It is used within another ``accumulate``, or without ``with``; or
                ``gradient_accumulation_steps`` is above 1, and a model was not prepared.
            WrongTypeError: ``gradient_accumulation_steps`` is above 1, and a model is no module.
        """
        return self._synchronization.accumulate(*models)

    @used_by_with("runtime.no_sync(model)")
    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward leaves the gradients of ``model`` unreduced, for accumulation."""
        return self._synchronization.no_sync(model)

    @used_by_with("runtime.trigger_sync_in_backward(model)")
    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward reduces the gradients of ``model``, also those of a forward pass in no_sync.

        ::

            with runtime.no_sync(model):
                first, second = criterion(model(a)), criterion(model(b))
            runtime.backward(first)
            with runtime.trigger_sync_in_backward(model):
                runtime.backward(second)
        """
        return self._synchronization.trigger_sync_in_backward(model)

    @used_by_with("runtime.join_uneven_inputs([model])")
    def join_uneven_inputs(
        self, joinables: Sequence[Any], even_batches: bool | None = None
    ) -> AbstractContextManager[Any]:
        """A context for a loop in which the processes have different numbers of batches.

        Processes that have no more batches take part in the reductions of the others, with gradients of zero. At the
        end all processes have the parameters of the one with the most batches.

        Args:
            joinables: The prepared models, and optimizers that communicate, in a list or a tuple.
            even_batches: If given, replaces ``even_batches`` of all prepared loaders over map-style data in the
                context: with ``False`` no batch is padded.

        Raises:
            ConfigurationError: The strategy has no such context, or gradients are accumulated: a process without
                further batches would take part with zeros instead of the gradients that it has accumulated.
            WrongTypeError: ``joinables`` is not a list of models and optimizers, or ``even_batches`` is no bool.
        """
        return self._synchronization.join_uneven_inputs(joinables, even_batches)

    # -- exchange ----------------------------------------------------------------------------------------------------

    @overload
    def gather(self, tensor: Tensor) -> Tensor: ...

    @overload
    def gather(self, tensor: Any) -> Any: ...

    def gather(self, tensor: Any) -> Any:
        """Concatenate each tensor in ``tensor`` over all processes along the first dimension, by rank.

        Scalars become vectors. The results are detached from the graph, as are those of :meth:`reduce`.

        Args:
            tensor: A tensor, or a nested structure of tensors and ``None``.

        Raises:
            ConfigurationError: Structures, shapes or dtypes differ between processes.
            WrongTypeError: It has anything else in it, at any depth.
        """
        return self._collectives.gather(tensor)

    def gather_object(self, object: Any) -> list[Any]:  # noqa: A002  Accelerate's name
        """The lists of all processes, joined by rank; tensors in them are on this process's device.

        Args:
            object: A list or tuple of picklable objects. The processes' lists may have different lengths.

        Raises:
            WrongTypeError: A process gave something other than a list or tuple.
            ConfigurationError: A process gave an object that cannot be pickled.
        """
        return self._collectives.gather_object(object)

    @overload
    def gather_for_metrics(self, input_data: Tensor, use_gather_object: bool = False) -> Tensor: ...

    @overload
    def gather_for_metrics(self, input_data: tuple[*Ts], use_gather_object: bool = False) -> tuple[*Ts]: ...

    @overload
    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any: ...

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """:meth:`gather` what was computed of the newest batch, each item of the data set once, in the data's order.

        Items that pad an incomplete global batch are left out: of each process's part the items after those that
        :attr:`core.data.PreparedLoader.real_samples` of the active loader counts. Outside of all loops over prepared
        loaders nothing is left out. Of processes that read the same part of the data, one counts.

        Args:
            input_data: A tensor, or a nested structure of tensors and ``None``, with one row for each item of the
                batch; of a scalar, such as a loss, the result has one element for each process with real items. Or a
                list with one picklable object for each item.
            use_gather_object: Whether to send a list of tensors as a list of objects, so that their shapes may differ.

        Returns:
            The structure with the joined tensors, or the joined list.

        Raises:
            ConfigurationError: Structures, dtypes or shapes differ between processes, other than in the number of rows
                of an incomplete batch; the processes' loaders are at different batches; or with ``even_batches=False``
                some processes have no batch left, and so do not call it.
            WrongTypeError: ``input_data`` has anything other than tensors in it, and is not a list of objects.
        """
        return self._metrics.gather_for_metrics(input_data, use_gather_object)

    @overload
    def reduce(self, tensor: Tensor, reduction: str = "sum", scale: float = 1.0) -> Tensor: ...

    @overload
    def reduce(self, tensor: float, reduction: str = "sum", scale: float = 1.0) -> float: ...

    @overload
    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any: ...

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Combine each tensor and each number in ``tensor`` elementwise over all processes.

        The result of a number is a number. The mean of integers is fractional: a float32 tensor, or a float. The sum of
        truth values is their number, as in :func:`torch.sum`: an int64 tensor; so is their product.

        Args:
            tensor: A tensor, a number, or a nested structure of them and ``None``.
            reduction: One of ``mean``, ``sum``, ``min``, ``max``, ``product``.
            scale: A factor for the result.

        Raises:
            ConfigurationError: ``reduction`` is unknown, or structures, shapes, dtypes or reductions differ between
                processes.
            WrongTypeError: ``tensor`` has anything else in it, at any depth.
        """
        return self._collectives.reduce(tensor, reduction, scale)

    @overload
    def broadcast(self, tensor: Tensor, from_process: int = 0) -> Tensor: ...

    @overload
    def broadcast(self, tensor: Any, from_process: int = 0) -> Any: ...

    def broadcast(self, tensor: Any, from_process: int = 0) -> Any:
        """``tensor``, or any picklable object, as process ``from_process`` has it.

        Args:
            tensor: What process ``from_process`` sends; the others may pass anything.
            from_process: The process that sends.

        Returns:
            The object; its tensors are on this process's device.

        Raises:
            ConfigurationError: There is no such process, or the object cannot be pickled; raised in every process.
        """
        return self._collectives.broadcast(tensor, from_process)

    def broadcast_object_list(self, object_list: L, from_process: int = 0) -> L:
        """Overwrite ``object_list`` with the one of process ``from_process``, in place.

        Returns:
            ``object_list``, with as many objects as process ``from_process`` has.

        Raises:
            WrongTypeError: It is not a list.
            ConfigurationError: As :meth:`broadcast`.
        """
        return self._collectives.broadcast_object_list(object_list, from_process)

    @overload
    def pad_across_processes(
        self, tensor: Tensor, dim: int = 0, pad_index: float = 0, pad_first: bool = False
    ) -> Tensor: ...

    @overload
    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any: ...

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Pad each tensor in ``tensor`` along ``dim`` to the largest size that it has in any process.

        Args:
            tensor: A tensor, or a nested structure of tensors and ``None``. Tensors without a dimension ``dim`` are
                returned unchanged.
            dim: The dimension, which may be negative.
            pad_index: The value to pad with.
            pad_first: Whether to pad at the start of the dimension, not at its end.

        Raises:
            ConfigurationError: Structures, dtypes, numbers of dimensions or ``dim`` differ between processes.
            WrongTypeError: It has anything else in it, at any depth, or ``dim`` is not an integer.
        """
        return self._collectives.pad_across_processes(tensor, dim, pad_index, pad_first)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process has called this."""
        self._control.wait("barrier", name)

    def wait_for_everyone(self) -> None:
        """Wait until every process has called this."""
        self._control.wait("wait_for_everyone")

    @used_by_with("runtime.main_process_first()")
    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """A context that process 0 leaves before the others enter it.

        Raises:
            LaunchError: In the other processes: process 0 has left it by an exception.
        """
        with self._control.first("main_process_first", self.is_main_process, per_node=False):
            yield

    @used_by_with("runtime.local_main_process_first()")
    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """A context that on each machine the local process 0 leaves before the machine's others enter it.

        Raises:
            LaunchError: In the machine's other processes: its process 0 has left it by an exception.
        """
        with self._control.first("local_main_process_first", self.is_local_main_process, per_node=True):
            yield

    def set_trigger(self) -> None:
        """Make the next :meth:`check_trigger` true in every process; may be called in some processes only."""
        self._control.is_triggered = True

    def check_trigger(self) -> bool:
        """Whether any process has called :meth:`set_trigger` since the last check; every process calls this."""
        return self._control.check_trigger()

    # -- in some processes only --------------------------------------------------------------------------------------

    @used_by_with("runtime.split_between_processes(inputs) as part")
    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """A context with this process's contiguous part of ``inputs``.

        The parts of all processes, joined by rank, are ``inputs``. Where there are fewer items than processes, the
        last processes have none.

        Args:
            inputs: The same in every process: a list, a tuple, a tensor, an array, a data set of Hugging Face, or a
                dict of them. It is not changed.
            apply_padding: Whether every process has the same number of items: then copies of the last item follow at
                the end. What is gathered of the parts, up to ``len(inputs)``, is without them.

        Raises:
            WrongTypeError: ``inputs`` cannot be divided.
            ConfigurationError: The values of a dict have different lengths.
        """
        strategy = self._life.live()
        yield split(inputs, strategy.world_size, strategy.global_rank, apply_padding)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    @property
    def project_configuration(self) -> ProjectConfiguration:
        """Where the files of the project go."""
        return self._run_state.project

    @project_configuration.setter
    def project_configuration(self, value: ProjectConfiguration) -> None:
        self._run_state.project = value

    @property
    def project_dir(self) -> str | os.PathLike[str] | None:
        """The folder of the project."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | os.PathLike[str] | None:
        """Where trackers write files."""
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """Like :attr:`ProjectConfiguration.iteration`."""
        return self.project_configuration.iteration

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Write a checkpoint, or an object into one file; process 0 writes, and may be the only one that calls this.

        A mapping becomes a committed checkpoint with these parts, which :meth:`load` reads: tensors, plain values,
        modules, optimizers, schedulers and other objects with a ``state_dict``, which is what is written. Where the
        strategy divides the state among the processes, every process has to call this.

        Where ``f`` ends in ``.pt``, ``.pth``, ``.bin``, ``.pkl`` or ``.safetensors``, and for any other object, it is
        one file, committed by a rename, as :func:`torch.save` writes it; with
        ``ProjectConfiguration(save_on_each_node=True)`` one on each machine, if process 0 of each calls this.

        Args:
            obj: A mapping of parts by name, or any object.
            f: The path of the checkpoint or of the file.
            safe_serialization: Write ``obj``, a mapping of names to tensors, as a safetensors file.

        Raises:
            WrongTypeError: ``obj`` is a module, an optimizer or a scheduler, or not a mapping of tensors although
                ``safe_serialization`` is set; or ``f`` is not a path.
            ConfigurationError: A part is named ``core``, a name that torch-hal uses for facts about the run, or
                safetensors is not installed.
            CheckpointError: It could not be written; or processes that are needed did not call this.
        """
        self._checkpointing.save(obj, f, safe_serialization)

    def load(self, path: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read a checkpoint that :meth:`save` has written; every process calls it.

        Args:
            path: The checkpoint; or a file or directory of another library. The parts of a directory have the names of
                its files without suffix, and weights alone are the part ``"model"``.
            state: The objects to load, by the name of their part. Each needs a ``load_state_dict``.

        Returns:
            The other parts of the checkpoint, by name, with tensors on the CPU.

        Raises:
            WrongTypeError: ``path`` is not a path, ``state`` is not a mapping, or an object in it has no
                ``load_state_dict``.
            CheckpointError: The checkpoint is absent, uncommitted or damaged, or a part is missing or could not be
                loaded.
        """
        return self._checkpointing.load(path, state)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Include ``objects`` in :meth:`save_state` and :meth:`load_state`, in the order of registration.

        Raises:
            WrongTypeError: Some of them have no ``state_dict`` or no ``load_state_dict``; all of those are named.
            ConfigurationError: There is no object, or one is prepared, so that it is in the checkpoint anyway.
        """
        self._run_state.register_for_checkpointing(*objects)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Call ``hook(models, weights, output_dir)`` in :meth:`save_state`, in each process that calls it.

        Args:
            hook: Gets the prepared models, the list of their states, and the directory of the new checkpoint, into
                which it may write files. They are committed with the rest. What it removes from ``weights`` is not
                saved by torch-hal.

        Returns:
            A handle, whose ``remove()`` removes the hook.
        """
        return self._run_state.register_save_state_pre_hook(hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Call ``hook(models, input_dir)`` in :meth:`load_state`, before anything is loaded.

        Args:
            hook: Gets the list of the prepared models and the directory of the checkpoint. What it removes from
                ``models`` is not loaded by torch-hal.

        Returns:
            A handle, whose ``remove()`` removes the hook.
        """
        return self._run_state.register_load_state_pre_hook(hook)

    def save_state(self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True) -> str:
        """Write the state of the whole run as one committed checkpoint, which :meth:`load_state` continues exactly.

        It holds the prepared models, optimizers, schedulers and loaders (the position in the data), the loss scale,
        registered objects, the state of the random number generators of each process, and within an accumulation the
        gradients. Call it after a step, in every process. Where each process has the whole state, process 0 may call
        it alone: then the generators of the others are not in the checkpoint, which a warning says.

        Args:
            output_dir: The directory of the checkpoint. Unless given, it is ``checkpoints/checkpoint_<number>`` in the
                project's folder; see :class:`core.ProjectConfiguration`.
            safe_serialization: Must be true: a checkpoint is read as data, never as code.

        Returns:
            The path of the checkpoint.

        Raises:
            ConfigurationError: There is no path, or ``safe_serialization`` is false.
            CheckpointError: It could not be written, or a process that is needed did not call this.
        """
        return self._run_state.save_state(output_dir, safe_serialization)

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: None = None,
        reshard: bool = False,
        strict: bool = True,
    ) -> None:
        """Continue a run from a checkpoint of :meth:`save_state`; every process calls it, after ``prepare``.

        Prepare and register the same objects in the same order as the run that saved it. On as many processes the run
        then goes on bit for bit.

        Args:
            input_dir: The checkpoint, or a directory that Accelerate's ``save_state`` has written. A warning lists what
                such a directory does not contain, and what is therefore not restored. Unless given, the newest
                committed one in the project's folder.
            load_kwargs: Must be ``None``.
            reshard: Whether to accept a checkpoint of another number of processes. What is left of an epoch is then
                divided among these, each sample once; generators of additional processes get new states.
            strict: Whether the models' parameter names must match, as in ``load_state_dict``.

        Raises:
            ConfigurationError: ``input_dir`` was not given and there is no project's folder.
            CheckpointError: The checkpoint is absent, uncommitted or damaged, of another number of processes, or was
                saved with other objects.
        """
        self._run_state.load_state(input_dir, load_kwargs, reshard, strict)
        self._backward.continue_from(self._run_state.loaders)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The state of ``model`` with whole tensors, at least in process 0.

        Where the strategy divides the state among the processes, every process has to call it.

        Args:
            model: Prepared or not.
            unwrap: Whether the keys are those of the user's own module; else those of the prepared one.

        Raises:
            WrongTypeError: ``model`` is not a module.
            CheckpointError: A process that is needed did not call this.
        """
        return self._checkpointing.get_state_dict(model, unwrap)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of ``model`` for other programs, with the file names of Hugging Face's libraries.

        Process 0 writes ``model.safetensors``, or several files and ``model.safetensors.index.json``. Of tied weights
        one is written; :func:`safetensors.torch.load_model` loads them. Names are those without :func:`torch.compile`.

        Args:
            model: Prepared or not.
            save_directory: Where the files go; other files there are kept.
            max_shard_size: The largest size of a file, as in ``"500MB"`` or a number of bytes.
            safe_serialization: ``False`` writes ``pytorch_model.bin``, as :func:`torch.save` does.

        Raises:
            WrongTypeError: ``model`` is not a module, or ``save_directory`` is no path.
            ConfigurationError: safetensors is not installed, or ``max_shard_size`` is not a size.
            CheckpointError: It could not be written, or a process that is needed did not call this.
        """
        self._checkpointing.save_model(model, save_directory, max_shard_size, safe_serialization)

    # -- tracking ----------------------------------------------------------------------------------------------------

    @property
    def trackers(self) -> list[Logger]:
        """The loggers of the run, from :meth:`init_trackers` to :meth:`end_training`."""
        return self._tracking.trackers

    @trackers.setter
    def trackers(self, value: list[Logger]) -> None:
        self._tracking.trackers = value

    def init_trackers(
        self, project_name: str, config: Any = None, init_kwargs: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Open a run of each tracker in ``log_with``. May be called by process 0 alone.

        Args:
            project_name: The name of the project or experiment; the folder's name where files are written.
            config: The configuration to store: a mapping, or an object with attributes.
            init_kwargs: Arguments of the libraries, by the tracker's name: ``{"wandb": {"entity": "me"}}``.

        Raises:
            BackendError: A tracker's package is missing or broken.
            ConfigurationError: The trackers are open already.
            UnknownNameError: A key of ``init_kwargs`` is not the name of a tracker.
            WrongTypeError: ``project_name`` is not a text.
        """
        self._tracking.init_trackers(project_name, config, init_kwargs)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Log ``values`` with every tracker; without ``log_with`` there is none, and the first call warns of that.

        A loss that is not finite is reported once.

        Args:
            values: Values by name. Tensors of one element are converted to numbers.
            step: The step that they belong to.
            log_kwargs: Arguments of the libraries' calls, by the tracker's name.

        Raises:
            ConfigurationError: ``log_with`` was given, but :meth:`init_trackers` was not called.
            UnknownNameError: A key of ``log_kwargs`` is not the name of a tracker.
            WrongTypeError: ``values`` is no mapping, or a tracker cannot write a value.
        """
        self._tracking.log(values, step, log_kwargs)

    def log_images(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Log images by name, each a batch or a list, with every tracker; see :meth:`log`.

        Raises:
            ConfigurationError: As for :meth:`log`, or a tracker writes no images.
        """
        self._tracking.log_images(values, step, log_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The tracker ``name``.

        Args:
            name: A name from ``log_with``, or the ``name`` of an object in it.
            unwrap: Whether to return the library's own object, such as ``wandb.Run``. In other processes than 0 it is
                an object whose methods do nothing.

        Raises:
            ConfigurationError: :meth:`init_trackers` was not called.
            UnknownNameError: There is no such tracker.
        """
        return self._tracking.get_tracker(name, unwrap)

    @used_by_with("runtime.profile() as profiler")
    @contextmanager
    def profile(
        self,
        profile_handler: ProfileKwargs | None = None,
        *,
        activities: Sequence[str] | None = None,
        schedule_option: Mapping[str, int] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        output_trace_dir: str | os.PathLike[str] | None = None,
    ) -> Iterator[profile]:
        """A context with :class:`torch.profiler.profile`; each process has its own.

        Args:
            profile_handler: The other arguments, as an object; by default the one among ``kwargs_handlers``.
            activities: What to record: names of :class:`torch.profiler.ProfilerActivity`; all that torch supports here
                by default.
            schedule_option: Arguments of :func:`torch.profiler.schedule`, such as ``{"wait": 1, "warmup": 1, "active":
                2}``; then call ``profiler.step()`` in each step.
            on_trace_ready: Called with the profiler when a trace is complete.
            record_shapes: Whether to record the shapes of operators' inputs.
            profile_memory: Whether to record memory.
            with_stack: Whether to record source lines.
            with_flops: Whether to estimate floating point operations.
            with_modules: Whether to record the modules that operators belong to.
            output_trace_dir: The folder for ``profile_<rank>.json``, a Chrome trace of each process.

        Raises:
            ConfigurationError: An activity is unknown or not supported here, or arguments are given next to an object.
            WrongTypeError: An argument has the wrong type.
        """
        given = ProfileKwargs(
            activities,
            schedule_option,
            on_trace_ready,
            record_shapes,
            profile_memory,
            with_stack,
            with_flops,
            with_modules,
            output_trace_dir,
        )
        with Profiling(self._strategy, self._profile_kwargs).profile(profile_handler, given) as profiler:
            yield profiler


def _enter(runtime: Runtime, function: Callable[..., T] | None, args: Any, kwargs: Any) -> T | None:
    """Run in each process."""
    runtime._life.start()
    if function is None or not runtime.plan.runs_function:
        return None if function is None else function(runtime, *args, **kwargs)
    # The process was started for this function and ends with it, so this is the last chance to tear down.
    with runtime:
        return function(runtime, *args, **kwargs)
