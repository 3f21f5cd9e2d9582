"""Preparing the user's modules, optimizers, schedulers and data loaders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ...data import DataSettings, PreparedLoader, prepare_loader
from ...data.shards import index_source
from ...errors import ConfigurationError, WrongTypeError
from ...logging import get_logger
from ...strategies.base import Strategy
from ...strategies.batch_norm import desynchronize
from ...strategies.wrapping import unwrap_optimizer
from ..accumulation import OptimizerGate, Window
from ..checks import check_holds, check_kind, check_loader, check_objects
from ..gradient_state import GradientState
from ..lifecycle import Life
from ..process_control import Agreement
from .prepared import PreparedObjects
from .wrappers import (
    AccumulatingOptimizer,
    PreparedModule,
    PreparedOptimizer,
    PreparedScheduler,
    needs_forward_context,
    own_module,
    warn_of_long_schedule,
)

logger = get_logger(__name__)

_KEEPING = {torch.bfloat16: "bf16-true", torch.float16: "16-true", torch.float64: "64-true"}
"""By dtype of a model's parameters, the precision in which they stay as they are."""


class Preparing:
    """Prepares the user's objects.

    Args:
        life: Of the run.
        prepared: Where they are noted.
        gradient_state: Whether a micro-batch synchronizes gradients.
        window: The micro-batches between two steps.
        agreement: What compares the calls of the processes.
        data_settings: How loaders are read.
        device_placement: Whether modules and batches are moved to the device.
        step_scheduler_with_optimizer: Whether schedulers step only if their optimizer does.
        sync_batchnorm: Whether batch norm layers normalize over the batches of all processes.

    Raises:
        ConfigurationError: The strategy has no such batch norm layers.
    """

    def __init__(
        self,
        life: Life,
        prepared: PreparedObjects,
        gradient_state: GradientState,
        window: Window,
        agreement: Agreement,
        *,
        data_settings: DataSettings,
        rng_types: Collection[str],
        device_placement: bool,
        step_scheduler_with_optimizer: bool,
        sync_batchnorm: bool,
    ) -> None:
        self._life, self._prepared = life, prepared
        self._gradient_state, self._window, self._agreement = gradient_state, window, agreement
        self.data_settings, self._rng_types = data_settings, rng_types
        self._device_placement, self._step_scheduler_with_optimizer = device_placement, step_scheduler_with_optimizer
        if sync_batchnorm:
            life.strategy.check_sync_batch_norm()
        self._sync_batchnorm = sync_batchnorm
        self._synced_layers: list[nn.Module] = []
        """Batch norm layers that normalize over all processes, until the run ends."""
        self._has_checked_schedules = False

    def prepare(self, objects: tuple[Any, ...], device_placement: Sequence[bool] | None) -> Any:
        """See :meth:`core.Runtime.prepare`."""
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
        self._life.live()
        owned = [parameter for obj in objects if isinstance(obj, nn.Module) for parameter in obj.parameters()]
        if owned:
            for module in self._prepared.of("models"):
                owned += module.parameters()
            optimizers = [obj for obj in objects if isinstance(obj, Optimizer)]
            check_holds(owned, optimizers, "prepare", self._life.strategy.world_size)
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
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _check_new(self, objects: Sequence[Any]) -> None:
        """Refuse a module that a prepared one stands for: two would each reduce its gradients."""
        known = {id(own_module(model, self._life.strategy)): model for model in self._prepared.of("models")}
        for obj in objects:
            if isinstance(obj, nn.Module) and known.get(id(obj), obj) is not obj:
                raise ConfigurationError(
                    f"prepare: got the {type(obj).__name__} that was passed to prepare before. Use what prepare "
                    "returned then."
                )

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """See :meth:`core.Runtime.prepare_model`."""
        check_kind("prepare_model: model", model, nn.Module, "Pass a module.")
        prepared = self._prepare_module(model, device_placement, evaluation_mode)
        self._prepared.add([prepared])
        return prepared

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Optimizer:
        """See :meth:`core.Runtime.prepare_optimizer`."""
        check_kind("prepare_optimizer: optimizer", optimizer, Optimizer, "Pass an optimizer of torch.")
        self._life.live()
        prepared = self._prepare_optimizer(optimizer)
        self._prepared.add([prepared])
        return prepared

    def prepare_scheduler(self, scheduler: LRScheduler) -> LRScheduler:
        """See :meth:`core.Runtime.prepare_scheduler`."""
        check_kind("prepare_scheduler: scheduler", scheduler, LRScheduler, "Pass a scheduler of torch.")
        self._life.live()
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
        """See :meth:`core.Runtime.prepare_data_loader`."""
        check_loader("prepare_data_loader", loader)
        if slice_fn_for_dispatch is not None:
            raise ConfigurationError(
                f"slice_fn_for_dispatch={slice_fn_for_dispatch!r}: must be None; dispatched batches are divided by "
                "their items. Leave it out."
            )
        placement = self._device_placement if device_placement is None else device_placement
        strategy = self._life.live()
        prepared = prepare_loader(
            loader,
            strategy,
            evaluation=evaluation,
            sharded=sharded,
            settings=self.data_settings if settings is None else settings,
            device_placement=placement,
            active=self._gradient_state.passes,
            dispatches_streams=True,
        )
        if self._rng_types and strategy.world_size > 1:
            prepared.on_pass = partial(synchronize_generators, strategy, self._rng_types)
        if strategy.data_shards > 1 and type(loader) is DataLoader and prepared.is_map_style:
            with suppress(TypeError, NotImplementedError):  # it has no length
                _warn_of_none_left(loader, prepared, strategy.data_shards)
        self._prepared.add([prepared])
        return prepared

    def _prepare_module(
        self, module: nn.Module, device_placement: bool | None, evaluation_mode: bool = False
    ) -> nn.Module:
        strategy = self._life.live()
        if module in self._prepared.live:
            return module
        module = own_module(module, strategy)  # what another run has prepared, or this one before it was torn down
        if self._sync_batchnorm:
            self._synced_layers += strategy.sync_batch_norm(module)
        is_whole = evaluation_mode and not strategy.inference_is_collective
        if not is_whole:
            self._agreement.agree("prepare")
        before, dtypes = strategy.moves_modules, _dtypes(module)
        strategy.moves_modules = self._device_placement if device_placement is None else device_placement
        try:
            wrapped = Strategy.setup_module(strategy, module) if is_whole else strategy.setup_module(module)
        finally:
            strategy.moves_modules = before
        if _dtypes(module) == {torch.float32}:
            for dtype in dtypes & _KEEPING.keys():
                logger.warning(
                    "prepare: converted parameters of the model from %s to float32, as precision=%r requires. To "
                    "train in their own dtype, set precision=%r",
                    str(dtype).removeprefix("torch."),
                    strategy.precision.name,
                    _KEEPING[dtype],
                )
        if wrapped is module and not needs_forward_context(strategy.precision):
            return module
        prepared = PreparedModule(wrapped, module, strategy.precision)
        self._prepared.live.add(prepared)
        self._prepared.taken.add(prepared, module, wrapped is not module and strategy.world_size > 1)
        return prepared

    def _prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        strategy, prepared = self._life.strategy, self._prepared
        if isinstance(optimizer, PreparedOptimizer):
            if optimizer in prepared.live:
                prepared.optimizers[optimizer._core_optimizer] = None  # free_memory may have forgotten it
                prepared.given.add(optimizer._core_optimizer)
                return optimizer
            optimizer = unwrap_optimizer(optimizer)
        if strategy.world_size > 1:
            prepared.check_parameters(optimizer)
        prepared.given.add(optimizer)
        (optimizer,) = strategy.setup_optimizers([optimizer])
        prepared.given.add(optimizer)
        prepared.watch([optimizer], strategy.world_size)
        prepared.optimizers[optimizer] = None
        if self._gradient_state.num_steps > 1:
            optimizer = AccumulatingOptimizer(optimizer, strategy, OptimizerGate(self._gradient_state, self._window))
        elif not strategy.uses_native_step():
            optimizer = PreparedOptimizer(optimizer, strategy)
        prepared.live.add(optimizer)
        return optimizer

    def _prepare_scheduler(self, scheduler: LRScheduler) -> LRScheduler:
        strategy = self._life.strategy
        has_skips = self._gradient_state.num_steps > 1 or strategy.may_skip_steps()
        if isinstance(scheduler, PreparedScheduler):
            if scheduler in self._prepared.live:
                return scheduler
            scheduler = scheduler._core_scheduler
        if not (has_skips and self._step_scheduler_with_optimizer):
            return scheduler
        own = getattr(scheduler, "optimizer", None)
        if own is not None and not any(unwrap_optimizer(own) is unwrap_optimizer(one) for one in self._prepared.given):
            raise ConfigurationError(
                f"prepare: got a {type(scheduler).__name__}, but its optimizer, a {type(own).__name__}, was not "
                "prepared, so the scheduler cannot know which of its steps count. Prepare them together: model, "
                "optimizer, scheduler = runtime.prepare(model, optimizer, scheduler)."
            )
        prepared = PreparedScheduler(scheduler, self._gradient_state, strategy)
        self._prepared.live.add(prepared)
        return prepared

    def forget(self) -> None:
        """Forget all prepared objects."""
        self._prepared.clear()
        self._window.clear()
        self._gradient_state.sync_gradients = True

    def end(self, failed: bool) -> None:
        """Forget all prepared objects, which another run may be given again; see also :meth:`check_schedules`."""
        if not failed:
            self.check_schedules()
        self._has_checked_schedules = False
        self._prepared.live.clear()
        layers, self._synced_layers = self._synced_layers, []
        desynchronize(layers)
        self.forget()

    def check_schedules(self) -> None:
        """Warn once of schedules made for Accelerate's number of steps."""
        strategy = self._life.strategy
        if self._has_checked_schedules or not self._life.is_live or strategy.global_rank != 0:
            return
        self._has_checked_schedules = True
        share = self._share_of_steps()
        for scheduler in self._prepared.of("schedulers"):
            warn_of_long_schedule(scheduler, strategy.world_size, share)

    def _share_of_steps(self) -> float:
        """Steps in an epoch of the longest loader before ``prepare``, for each one after it."""
        before, after = 0, 0
        for loader in self._prepared.of("loaders"):
            with suppress(TypeError):  # it has no batches, or no length
                lengths = len(loader.batch_sampler), len(loader)
                before, after = max((before, after), lengths)
        num_steps = self._gradient_state.num_steps
        return ceil(before / num_steps) / ceil(after / num_steps) if after else float(self._life.strategy.world_size)


def synchronize_generators(strategy: Strategy, kinds: Collection[str]) -> None:
    """Give each process the states of process 0's generators."""
    accelerator, device = strategy.accelerator, strategy.root_device
    own = {kind: torch.get_rng_state() if kind == "torch" else accelerator.get_rng_state(device) for kind in kinds}
    for kind, state in strategy.broadcast(own).items():
        if kind == "torch":
            torch.set_rng_state(state)
        else:
            accelerator.set_rng_state(state, device)


def _dtypes(module: nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}


def _warn_of_none_left(loader: DataLoader[Any], prepared: PreparedLoader, shards: int) -> None:
    """Warn where one process has batches, and several have none: ``drop_last`` leaves out what not all can fill."""
    source, size, drop_last = index_source(loader)
    if drop_last and len(loader) and not len(prepared):
        logger.warning(
            "prepare: the loader has no batch. Its data has %d item(s), fewer than %s for each of the %d processes, "
            "and drop_last=True leaves them out. Lower batch_size, or set drop_last=False",
            len(source),
            size,
            shards,
        )
