"""When the gradients of a step are reduced over the processes: accumulation, and uneven numbers of batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import attrs
from torch import nn

from ...errors import ConfigurationError
from ..accumulation import MicroBatch, Window
from ..arguments import check_joinables
from ..prepare.preparing import Preparing
from ..with_guard import used_by_with

__all__ = ["Synchronization"]


class Synchronization(Preparing):
    """The part of :class:`core.Runtime` that says when gradients are reduced over the processes."""

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
        state = self._gradient_state
        plugin = attrs.evolve(state.plugin, num_steps=value)
        if self._optimizers and (state.num_steps == 1) != (value == 1):
            raise ConfigurationError(
                f"gradient_accumulation_steps={value}: optimizers were prepared for {state.num_steps}. Set it before "
                "prepare, or in Runtime(gradient_accumulation_steps=...)."
            )
        state.plugin = plugin
        if self._is_live:
            self._bind_step()

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
        if self._gradient_state.num_steps == 1:
            return _NOTHING
        for model in models:
            self._prepared.check_model("accumulate", model)
        strategy = self._live_strategy()
        self._window.announce()
        if strategy.world_size == 1 or self._gradient_state.plugin.sync_each_batch:
            return MicroBatch(self._window, models, None)
        return MicroBatch(self._window, models, self.no_sync)

    @used_by_with("runtime.no_sync(model)")
    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward leaves the gradients of ``model`` unreduced, for accumulation."""
        self._prepared.check_model("no_sync", model)
        self._gradient_state.is_managed = True
        return self._live_strategy().no_sync(self.strategy_module(model))

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
        self._prepared.check_model("trigger_sync_in_backward", model)
        return self._live_strategy().sync_in_backward(self.strategy_module(model))

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
        check_joinables(joinables, even_batches)
        strategy = self._live_strategy()
        if strategy.world_size == 1:
            return nullcontext()
        num_steps = self._gradient_state.num_steps
        if num_steps > 1:
            raise ConfigurationError(
                f"join_uneven_inputs: cannot be combined with gradient_accumulation_steps={num_steps}: a process that "
                "runs out of batches within a window would take part with zeros instead of the gradients that it has "
                "accumulated. Set gradient_accumulation_steps=1, or even_batches=True without join_uneven_inputs."
            )
        joined = [self.strategy_module(one) if isinstance(one, nn.Module) else one for one in joinables]
        join = partial(strategy.join_uneven, joined)
        return _Joining(join, self._prepared.of("loaders"), even_batches, self._window)


class _Joining(AbstractContextManager[None]):
    """Loaders with another ``even_batches``, in a strategy's context."""

    def __init__(self, join: Any, loaders: list[Any], even_batches: bool | None, window: Window) -> None:
        self._join, self._loaders, self._even_batches, self._window = join, loaders, even_batches, window
        self._before: list[tuple[Any, bool]] = []

    def __enter__(self) -> None:
        self._context = self._join()
        if self._even_batches is not None:
            self._before = [(loader, loader.even_batches) for loader in self._loaders if loader.is_map_style]
            for loader, _ in self._before:
                loader.even_batches = self._even_batches
        self._window.is_joined = True
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._context.__exit__(*error)
        finally:
            self._window.is_joined = False
            for loader, value in self._before:
                loader.even_batches = value


_NOTHING: AbstractContextManager[None] = nullcontext()
"""The context of a micro-batch that is a window by itself."""
