"""Preparing the user's modules, optimizers and data loaders, and finding the user's own in what was prepared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ...data import DataSettings, PreparedLoader, prepare_loader
from ...errors import ConfigurationError, WrongTypeError
from ...hints.argument_checks import suggest_arguments
from ...plan import Plan
from ...strategies.base import Strategy
from ...strategies.wrapping.batch_norm import desynchronize
from ...strategies.wrapping.optimizer_wrapper import unwrap_optimizer
from ..accumulation import OptimizerGate, Window
from ..arguments import check_holds, check_kind, check_loader, check_objects
from ..exchange.comparison import Agreement
from ..gradient_state import LoaderState
from ..properties import DataFacts
from .modules import PreparedModule, needs_forward_context
from .optimizers import AccumulatingOptimizer, PreparedOptimizer
from .prepared import PreparedObjects
from .schedulers import PreparedScheduler, warn_of_long_schedule
from .unused_results import TakenModules

__all__ = ["Preparing"]

UNWRAPPED = dict.fromkeys(
    ("keep_fp32_wrapper", "keep_torch_compile"),
    "Remove it: your own module is returned. Call it within runtime.autocast(), or compile it, where you want that.",
)
"""What to do instead of arguments that Accelerate's ``unwrap_model`` has."""


class Preparing(Agreement, LoaderState, DataFacts):
    """The part of :class:`core.Runtime` that prepares the user's objects."""

    def _connect(self, plan: Plan) -> None:
        super()._connect(plan)
        self._optimizers: WeakKeyDictionary[Optimizer, None] = WeakKeyDictionary()
        """The prepared optimizers, in the same order in every process."""
        self._given: WeakKeyDictionary[Optimizer, None] = WeakKeyDictionary()
        """Those, and the user's own that they were made of."""
        self._prepared, self._taken = PreparedObjects(), TakenModules()
        self._window = Window(self._gradient_state, self._optimizers)
        self._data_settings = DataSettings()
        self._device_placement = self._step_scheduler_with_optimizer = True
        self._sync_batchnorm = False
        self._synced_layers: list[nn.Module] = []
        """Batch norm layers that normalize over all processes, until the run ends."""

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_optimizers", "_given", "_window", "_taken")
        return {name: value for name, value in super().__getstate__().items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        of_process = {"_optimizers": WeakKeyDictionary(), "_given": WeakKeyDictionary(), "_taken": TakenModules()}
        super().__setstate__({**state, **of_process})
        self._window = Window(self._gradient_state, self._optimizers)

    def _synchronize_batch_norms(self) -> None:
        """Let batch norm layers of modules that are prepared from now on normalize over the batches of all processes.

        Raises:
            ConfigurationError: The strategy cannot do so.
        """
        self._strategy.check_sync_batch_norm()
        self._sync_batchnorm = True

    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:
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
        if isinstance(device_placement, bool):
            raise WrongTypeError(
                f"device_placement={device_placement!r}: must have one value for each object, as in "
                f"[{', '.join(map(repr, [device_placement] * max(len(objects), 1)))}]."
            )
        places = [None] * len(objects) if device_placement is None else list(device_placement)
        if len(places) != len(objects):
            raise ConfigurationError(
                f"device_placement={device_placement!r}: has {len(places)} values for {len(objects)} objects. Give one "
                "for each."
            )
        check_objects("prepare", objects)
        self._check_new(objects)
        self._live_strategy()
        owned = [parameter for obj in objects if isinstance(obj, nn.Module) for parameter in obj.parameters()]
        if owned:
            for module in self._prepared.of("models"):
                owned += module.parameters()
            check_holds(owned, [obj for obj in objects if isinstance(obj, Optimizer)], "prepare")
        prepared: list[Any] = list(objects)
        for position, obj in enumerate(objects):
            if isinstance(obj, nn.Module):
                prepared[position] = self._prepare_module(obj, places[position])
        for position, obj in enumerate(objects):
            if isinstance(obj, Optimizer):
                prepared[position] = self._prepare_optimizer(obj)
            elif isinstance(obj, DataLoader):
                prepared[position] = self.prepare_data_loader(obj, device_placement=places[position])
        for position, obj in enumerate(objects):
            if isinstance(obj, LRScheduler):
                prepared[position] = self._prepare_scheduler(obj)
        self._prepared.add(prepared)
        self._bind_step()
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _check_new(self, objects: Sequence[Any]) -> None:
        """Refuse a module that a prepared one stands for: two would each reduce its gradients."""
        known = {id(self.unwrap_model(model)): model for model in self._prepared.of("models")}
        for obj in objects:
            if isinstance(obj, nn.Module) and known.get(id(obj), obj) is not obj:
                raise ConfigurationError(
                    f"prepare: got the {type(obj).__name__} that was passed to prepare before. Use what prepare "
                    "returned then."
                )

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
        check_kind("prepare_model: model", model, nn.Module, "Pass a module.")
        prepared = self._prepare_module(model, device_placement, evaluation_mode)
        self._prepared.add([prepared])
        self._bind_step()
        return prepared

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Optimizer:
        """One optimizer, as in :meth:`prepare`. Its state is on the devices of its parameters in any case."""
        del device_placement
        check_kind("prepare_optimizer: optimizer", optimizer, Optimizer, "Pass an optimizer of torch.")
        self._live_strategy()
        prepared = self._prepare_optimizer(optimizer)
        self._prepared.add([prepared])
        self._bind_step()
        return prepared

    def prepare_scheduler(self, scheduler: LRScheduler) -> LRScheduler:
        """One scheduler, as in :meth:`prepare`: it steps once a step of its optimizer, on any number of processes."""
        check_kind("prepare_scheduler: scheduler", scheduler, LRScheduler, "Pass a scheduler of torch.")
        self._live_strategy()
        prepared = self._prepare_scheduler(scheduler)
        self._prepared.add([prepared])
        return prepared

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
        check_loader("prepare_data_loader", loader)
        if slice_fn_for_dispatch is not None:
            raise ConfigurationError(
                f"slice_fn_for_dispatch={slice_fn_for_dispatch!r}: must be None; dispatched batches are divided by "
                "their items. Leave it out."
            )
        placement = self._device_placement if device_placement is None else device_placement
        strategy = self._live_strategy()
        prepared = prepare_loader(
            loader,
            strategy,
            evaluation=evaluation,
            sharded=sharded,
            settings=self._data_settings if settings is None else settings,
            device_placement=placement,
            active=self._active,
        )
        self._prepared.add([prepared])
        return prepared

    def _prepare_module(
        self, module: nn.Module, device_placement: bool | None, evaluation_mode: bool = False
    ) -> nn.Module:
        strategy = self._live_strategy()
        if self.unwrap_model(module) is not module:
            return module
        if self._sync_batchnorm:
            self._synced_layers += strategy.sync_batch_norm(module)
        is_whole = evaluation_mode and not strategy.inference_is_collective
        if not is_whole:
            self._agree("prepare")
        before = strategy.moves_modules
        strategy.moves_modules = self._device_placement if device_placement is None else device_placement
        try:
            wrapped = Strategy.setup_module(strategy, module) if is_whole else strategy.setup_module(module)
        finally:
            strategy.moves_modules = before
        if wrapped is module and not needs_forward_context(strategy.precision):
            return module
        prepared = PreparedModule(wrapped, module, strategy.precision)
        self._taken.add(prepared, module, wrapped is not module and strategy.world_size > 1)
        return prepared

    def _prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer
        strategy = self._strategy
        self._given[optimizer] = None
        (optimizer,) = strategy.setup_optimizers([optimizer])
        self._given[optimizer] = None
        self._optimizers[optimizer] = None
        if self._gradient_state.num_steps > 1:
            return AccumulatingOptimizer(optimizer, strategy, OptimizerGate(self._gradient_state, self._window))
        return optimizer if strategy.uses_native_step() else PreparedOptimizer(optimizer, strategy)

    def _prepare_scheduler(self, scheduler: LRScheduler) -> LRScheduler:
        strategy = self._strategy
        has_skips = self._gradient_state.num_steps > 1 or strategy.precision.scales_loss or strategy.counts_steps
        if isinstance(scheduler, PreparedScheduler) or not (has_skips and self._step_scheduler_with_optimizer):
            return scheduler
        own = getattr(scheduler, "optimizer", None)
        if own is not None and not any(unwrap_optimizer(own) is unwrap_optimizer(one) for one in self._given):
            raise ConfigurationError(
                f"prepare: got a {type(scheduler).__name__}, but its optimizer, a {type(own).__name__}, was not "
                "prepared, so the scheduler cannot know which of its steps count. Prepare them together: model, "
                "optimizer, scheduler = runtime.prepare(model, optimizer, scheduler)."
            )
        return PreparedScheduler(scheduler, self._gradient_state, strategy)

    def _forget(self) -> None:
        """Forget all prepared objects."""
        self._optimizers.clear()
        self._given.clear()
        self._prepared.clear()
        self._taken = TakenModules()
        self._window = Window(self._gradient_state, self._optimizers)
        self._gradient_state.sync_gradients = True

    def teardown(self, failed: bool = False) -> None:
        """Forget all prepared objects, which another run may be given again; see :meth:`RunLife.teardown`.

        Warns of schedules made for Accelerate's number of steps.
        """
        schedulers = self._prepared.of("schedulers")
        layers, self._synced_layers = self._synced_layers, []
        desynchronize(layers)
        self._forget()
        try:
            if self._is_live and self.is_main_process and not failed:
                for scheduler in schedulers:
                    warn_of_long_schedule(scheduler, self.num_processes)
        finally:
            super().teardown(failed)

    @partial(suggest_arguments, remedies=UNWRAPPED, owner="Runtime.unwrap_model")
    def unwrap_model(self, model: nn.Module) -> nn.Module:
        """The user's own module in a prepared one; its forward pass is as the user wrote it, without autocast."""
        check_kind("unwrap_model: model", model, nn.Module, "Pass the prepared module.")
        return model._core_inner if isinstance(model, PreparedModule) else self._strategy.unwrap_module(model)

    def strategy_module(self, model: nn.Module) -> nn.Module:
        """The module as the strategy set it up, in a prepared one, which :func:`torch.compile` may have wrapped."""
        if not isinstance(model, PreparedModule):
            model = getattr(model, "_orig_mod", model)
        return model._core_wrapped if isinstance(model, PreparedModule) else model
